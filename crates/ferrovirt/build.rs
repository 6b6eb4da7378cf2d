//! How the program is linked, for the sake of the memory of components that wait: one program is all of them.
//!
//! * At a fixed address. Its tables of functions and sentences hold some 300,000 addresses; a program that can lie anywhere has
//!   them adjusted at each start, and the three megabytes that are written so are each process's own. Heap, stacks, libraries
//!   and the kernel's pages lie at random addresses as before.
//! * With the functions that components execute while they wait in one place (`waiting.ld`, made by `cargo xtask codegen waiting`
//!   from components at work). The kernel maps code in pieces of 64 KiB and more around what is used, so what is scattered counts
//!   many times. A debug build has other functions, and links faster without.

/// A file that the linker's map is written to, for `cargo xtask codegen waiting`.
const MAP: &str = "FERROVIRT_LINK_MAP";

fn main() {
    let order = concat!(env!("CARGO_MANIFEST_DIR"), "/waiting.ld");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={order}");
    println!("cargo::rerun-if-env-changed={MAP}");
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{order}");
    }
    if let Ok(map) = std::env::var(MAP) {
        println!("cargo::rustc-link-arg-bins=-Wl,-Map={map}");
    }
}
