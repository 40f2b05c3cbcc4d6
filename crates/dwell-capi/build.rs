// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the shared library is linked. Its name for the dynamic linker: programs built against one
//! minor version before 1.0, one major version after, run with any other release of it. It stays
//! loaded, for a thread of its own may outlive `dlclose`.

fn main() {
    let version =
        |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let soname = match version("MAJOR").as_str() {
        "0" => format!("libdwell.so.0.{}", version("MINOR")),
        major => format!("libdwell.so.{major}"),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
