// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a server refused: NFS's own numbers, in words and as the system's error numbers.

/// A status that is no success.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

macro_rules! statuses {
    ($($name:ident = $number:literal, $errno:ident, $words:literal;)*) => {
        impl Status {
            $(#[doc = $words] pub const $name: Status = Status($number);)*

            /// Its name in the protocol's document.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($number => concat!("NFS3ERR_", stringify!($name)),)*
                    _ => "an unknown status",
                }
            }

            /// The system's error number for it.
            pub fn errno(self) -> i32 {
                match self.0 {
                    $($number => libc::$errno,)*
                    _ => libc::EIO,
                }
            }

            fn words(self) -> &'static str {
                match self.0 {
                    $($number => $words,)*
                    _ => "refused for a reason that NFS version 3 does not have",
                }
            }
        }
    };
}

statuses! {
    PERM = 1, EPERM, "not permitted";
    NOENT = 2, ENOENT, "no such file or directory";
    IO = 5, EIO, "input/output error at the server";
    NXIO = 6, ENXIO, "no such device at the server";
    ACCES = 13, EACCES, "permission denied";
    EXIST = 17, EEXIST, "exists already";
    XDEV = 18, EXDEV, "lies on another file system of the server";
    NODEV = 19, ENODEV, "no such device at the server";
    NOTDIR = 20, ENOTDIR, "not a directory";
    ISDIR = 21, EISDIR, "is a directory";
    INVAL = 22, EINVAL, "the server takes the arguments for invalid";
    FBIG = 27, EFBIG, "larger than the server allows a file to be";
    NOSPC = 28, ENOSPC, "no space left on the server";
    ROFS = 30, EROFS, "the export is read-only";
    MLINK = 31, EMLINK, "too many links";
    NAMETOOLONG = 63, ENAMETOOLONG, "the name is too long for the server";
    NOTEMPTY = 66, ENOTEMPTY, "the directory is not empty";
    DQUOT = 69, EDQUOT, "over the quota on the server";
    STALE = 70, ESTALE, "stale handle: the file was removed or replaced at the server";
    REMOTE = 71, EREMOTE, "lies on another server";
    BADHANDLE = 10001, EBADF, "the server does not know the handle";
    NOT_SYNC = 10002, EAGAIN, "changed meanwhile";
    BAD_COOKIE = 10003, EAGAIN, "the directory changed while it was listed";
    NOTSUPP = 10004, EOPNOTSUPP, "the server does not support this";
    TOOSMALL = 10005, EINVAL, "the buffer is too small for the server";
    SERVERFAULT = 10006, EIO, "the server failed";
    BADTYPE = 10007, EINVAL, "the server does not support this kind of file";
    JUKEBOX = 10008, EAGAIN, "the server asks to try again later";
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} {})", self.words(), self.name(), self.0)
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
