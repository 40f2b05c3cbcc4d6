// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that a test takes away from its own process.

/// Makes these system calls fail with `errno` from here on, in every thread.
pub fn forbid(calls: &[libc::c_long], errno: i32) -> bool {
    filter(calls, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Answers these system calls so from here on, in every thread.
pub fn filter(calls: &[libc::c_long], answer: u32) -> bool {
    let statement =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 0, 1));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, answer, 0, 0));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter are live; both calls only restrict this process.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &program,
            ) == 0
    }
}
