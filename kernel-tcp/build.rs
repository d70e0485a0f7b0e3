//! Compiles the BPF programs with clang. Their object becomes a part of the loader.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let object = folder("OUT_DIR").join("tandem_mdcc.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(&clang)
        .args(["-g", "-O2", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .args(["-Wno-unused-parameter", "-c", "bpf/tandem_mdcc.bpf.c"])
        .arg("-I")
        .arg(folder("DEP_BPF_INCLUDE")) // the headers of the libbpf that the loader is linked with
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang}: {status}"),
        Err(error) => panic!("{clang}: {error}; apt-get install clang"),
    }
}
