// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A key of ours takes the state of a thread down. The C library's own list would come from the
    // program's allocator, which a signal handler may have interrupted. Nothing has the name that
    // is put in its place, and without it the standard library uses a key.
    wrap("__cxa_thread_atexit_impl");
    // C libraries as old as 2.28 have these in libraries apart, under other versions, or not at
    // all: `src/older.rs` stands in.
    OLDER.iter().for_each(|name| wrap(name));
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2");
}

const OLDER: [&str; 23] = [
    "dlsym",
    "exp",
    "fstat",
    "fstat64",
    "gettid",
    "log",
    "lstat64",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setcancelstate",
    "pthread_setcanceltype",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
    "pthread_testcancel",
    "stat64",
];

fn wrap(name: &str) {
    println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
}
