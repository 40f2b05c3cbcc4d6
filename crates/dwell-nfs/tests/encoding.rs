// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every call as another implementation reads it: decoded by `nfs3_types`, encoded again, the same
//! bytes.

use std::io::Cursor;

use dwell_nfs::mount::{GetPort, Mount};
use dwell_nfs::nfs3::*;
use dwell_nfs::procedure::Procedure;
use dwell_nfs::rpc::{Credential, write_call};
use dwell_nfs::xdr::Writer;
use nfs3_types::nfs3 as other;
use nfs3_types::xdr_codec::{Pack, Unpack};

fn handle() -> Handle {
    Handle::new(b"a handle of 21 bytes.").unwrap()
}

/// Encodes a call's arguments, with their payload.
fn encoded<C: Procedure>(call: &C, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    call.write(&mut Writer::new(&mut out));
    assert_eq!(call.payload_bytes(), payload.len());
    out.extend_from_slice(payload);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// What another implementation makes of them: all are read, and written the same.
fn decoded<T: Pack + Unpack>(bytes: &[u8]) -> T {
    let (read, length) = T::unpack(&mut Cursor::new(bytes)).unwrap();
    assert_eq!(length, bytes.len());
    let mut again = Vec::new();
    read.pack(&mut again).unwrap();
    assert_eq!(again, bytes);
    read
}

fn attributes() -> SetAttributes {
    SetAttributes {
        mode: Some(0o640),
        uid: Some(5),
        gid: None,
        bytes: Some(1 << 33),
        accessed: SetTime::Now,
        modified: SetTime::To(Time { seconds: 12, nanoseconds: 34 }),
    }
}

#[test]
fn arguments_are_read_by_another_implementation() {
    let (file, directory, name) = (handle(), handle(), &b"a name"[..]);
    let fh = |read: &other::nfs_fh3| assert_eq!(read.data.0.as_ref(), handle().bytes());
    let named = |read: &other::diropargs3<'_>| {
        fh(&read.dir);
        assert_eq!(read.name.0.0.as_ref(), b"a name");
    };
    fh(&decoded::<other::GETATTR3args>(&encoded(&GetAttributes(file), &[])).object);
    let change = ChangeAttributes { file, to: attributes() };
    let read = decoded::<other::SETATTR3args>(&encoded(&change, &[]));
    assert!(read.new_attributes.mode.is_some() && !read.new_attributes.gid.is_some());
    assert!(!read.guard.is_some());
    named(&decoded::<other::LOOKUP3args>(&encoded(&Lookup { directory, name }, &[])).what);
    let access = Access { file, wanted: 0x3f };
    assert_eq!(decoded::<other::ACCESS3args>(&encoded(&access, &[])).access, 0x3f);
    fh(&decoded::<other::READLINK3args>(&encoded(&ReadLink(file), &[])).symlink);
    let read = Read { file, offset: 1 << 40, bytes: 65536 };
    let read = decoded::<other::READ3args>(&encoded(&read, &[]));
    assert_eq!((read.offset, read.count), (1 << 40, 65536));
    for bytes in 0..9u32 {
        for stable in [Stable::Unstable, Stable::DataSync, Stable::FileSync] {
            let write = Write { file, offset: 77, bytes, stable };
            let payload = vec![9; bytes as usize];
            let read = decoded::<other::WRITE3args<'_>>(&encoded(&write, &payload));
            assert_eq!((read.offset, read.count, read.stable as u32), (77, bytes, stable as u32));
            assert_eq!(read.data.0.as_ref(), payload);
        }
    }
    let attributes = attributes();
    let (unchecked, guarded) = (CreateHow::Unchecked(attributes), CreateHow::Guarded(attributes));
    for how in [unchecked, guarded, CreateHow::Exclusive(*b"verifier")] {
        let create = Create { directory, name, how };
        let read = decoded::<other::CREATE3args<'_>>(&encoded(&create, &[]));
        named(&read.where_);
        assert!(match read.how {
            other::createhow3::UNCHECKED(_) => how == unchecked,
            other::createhow3::GUARDED(_) => how == guarded,
            other::createhow3::EXCLUSIVE(verifier) => verifier.0 == *b"verifier",
        });
    }
    for (kind, device) in [(Kind::Pipe, (0, 0)), (Kind::Character, (1, 3)), (Kind::Socket, (0, 0))]
    {
        let make = MakeNode { directory, name, kind, attributes, device };
        let read = decoded::<other::MKNOD3args<'_>>(&encoded(&make, &[]));
        named(&read.where_);
        assert!(match read.what {
            other::mknoddata3::NF3FIFO(_) => kind == Kind::Pipe,
            other::mknoddata3::NF3SOCK(_) => kind == Kind::Socket,
            other::mknoddata3::NF3CHR(there) => {
                kind == Kind::Character && (there.spec.specdata1, there.spec.specdata2) == device
            }
            _ => false,
        });
    }
    let link = decoded::<other::LINK3args<'_>>(&encoded(&Link { file, directory, name }, &[]));
    fh(&link.file);
    named(&link.link);
    fh(&decoded::<other::PATHCONF3args>(&encoded(&NameLimits(file), &[])).object);
    let make = MakeDirectory { directory, name, attributes };
    named(&decoded::<other::MKDIR3args<'_>>(&encoded(&make, &[])).where_);
    let make = MakeLink { directory, name, attributes, target: b"there" };
    named(&decoded::<other::SYMLINK3args<'_>>(&encoded(&make, &[])).where_);
    named(&decoded::<other::REMOVE3args<'_>>(&encoded(&Remove { directory, name }, &[])).object);
    let remove = RemoveDirectory { directory, name };
    named(&decoded::<other::RMDIR3args<'_>>(&encoded(&remove, &[])).object);
    let rename = Rename { from: (directory, name), to: (directory, name) };
    named(&decoded::<other::RENAME3args<'_, '_>>(&encoded(&rename, &[])).to);
    let list = List { directory, cookie: 9, verifier: *b"verifier", bytes: 32768 };
    let read = decoded::<other::READDIRPLUS3args>(&encoded(&list, &[]));
    assert_eq!((read.cookie, read.cookieverf.0, read.maxcount), (9, *b"verifier", 32768));
    assert_eq!(decoded::<other::READDIR3args>(&encoded(&ListNames(list), &[])).count, 32768);
    fh(&decoded::<other::FSSTAT3args>(&encoded(&Space(file), &[])).fsroot);
    fh(&decoded::<other::FSINFO3args>(&encoded(&Limits(file), &[])).fsroot);
    let commit =
        decoded::<other::COMMIT3args>(&encoded(&Commit { file, offset: 3, bytes: 4 }, &[]));
    assert_eq!((commit.offset, commit.count), (3, 4));
}

#[test]
fn heads_mounts_and_ports_are_read_by_another_implementation() {
    use nfs3_types::rpc::{auth_flavor, auth_unix, msg_body, rpc_msg};
    let credential = Credential::sys("machine", 7, 8, &[9, 10]);
    let mut out = Vec::new();
    write_call(&mut out, 77, Write::TARGET, &credential);
    let message = decoded::<rpc_msg<'_, '_>>(&out);
    assert_eq!(message.xid, 77);
    let msg_body::CALL(call) = message.body else { panic!("a call") };
    assert_eq!((call.rpcvers, call.prog, call.vers, call.proc), (2, 100_003, 3, 7));
    assert_eq!(call.cred.flavor, auth_flavor::AUTH_UNIX);
    let who = decoded::<auth_unix>(&call.cred.body.0);
    assert_eq!((who.uid, who.gid, who.gids), (7, 8, vec![9, 10]));
    let path = decoded::<nfs3_types::mount::dirpath<'_>>(&encoded(&Mount(b"/export"), &[]));
    assert_eq!(path.0.0.as_ref(), b"/export");
    let port = GetPort { program: PROGRAM, version: VERSION, udp: true };
    let port = decoded::<nfs3_types::portmap::mapping>(&encoded(&port, &[]));
    assert_eq!((port.prog, port.vers, port.prot, port.port), (100_003, 3, 17, 0));
}
