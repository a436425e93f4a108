use criterion::*;
fn main() {}
