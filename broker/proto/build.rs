//! Generates the gRPC code. The compiler for the .proto is a Rust crate: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/understudy.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
