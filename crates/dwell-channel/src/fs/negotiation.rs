// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel and the server agree on before the first request.

use std::io;

use fuser::{FopenFlags, InitFlags, KernelConfig, Version};

use super::tree::Tree;

/// Bytes that one write may carry.
const MAX_WRITE_BYTES: u32 = 1 << 20;

/// Agrees on what both can do.
///
/// # Errors
/// The kernel cannot do what the tree depends on.
pub(super) fn agree(tree: &Tree, config: &mut KernelConfig) -> io::Result<()> {
    let wanted = InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_HAS_IOCTL_DIR
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_POSIX_ACL
        // Writes take set-user-id away by themselves: nobody has to ask for security.capability
        // before.
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    let there = wanted & config.capabilities();
    let refused = |what: &str| {
        io::Error::new(io::ErrorKind::Unsupported, format!("the kernel's FUSE has no {what}"))
    };
    config.add_capabilities(there).map_err(|flags| refused(&format!("{flags:?}")))?;
    // Without it the kernel would let a group in that an access list keeps out.
    if !there.contains(InitFlags::FUSE_POSIX_ACL) {
        return Err(refused("access lists; Linux 5.6 or newer is needed"));
    }
    pass_through(tree, config);
    // A value beyond what the kernel takes is set to what it takes.
    let _ = config.set_max_write(MAX_WRITE_BYTES);
    let _ = config.set_max_background(64);

    let mappings = there.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    let mut flags = FopenFlags::FOPEN_DIRECT_IO;
    // Linux 6.9 is the first where mappings and writes side by side go together.
    if !mappings || config.kernel_abi() >= Version(7, 40) {
        flags |= FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    }
    let _ = tree.open_flags.set(flags);
    let _ = tree.shared_mappings.set(mappings);
    Ok(())
}

/// Has the kernel pass requests on regular files through, if it can.
fn pass_through(tree: &Tree, config: &mut KernelConfig) {
    let passthrough = &tree.passthrough;
    if !passthrough.is_on() {
        return;
    }
    let can = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
        && config.set_max_stack_depth(passthrough.stack_depth()).is_ok();
    if !can {
        passthrough.give_up("the kernel has no FUSE passthrough (Linux 6.9)");
    }
}
