//! How the program is linked, for the sake of the memory of components that wait: one program is all of them.
//!
//! * At a fixed address. Its tables of functions and sentences hold some 300,000 addresses; a program that can lie anywhere has
//!   them adjusted at each start, and the three megabytes that are written so are each process's own. Heap, stacks, libraries
//!   and the kernel's pages lie at random addresses as before.
//! * With the code that every component runs while it waits (timers, connections, TLS, probes) in one place (`waiting.ld`). The
//!   kernel maps code in pieces of 64 KiB and more around what is used, so what is scattered counts many times.

fn main() {
    let order = concat!(env!("CARGO_MANIFEST_DIR"), "/waiting.ld");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={order}");
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{order}");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
