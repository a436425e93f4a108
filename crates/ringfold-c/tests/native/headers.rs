//! Tests of the headers.

use crate::compiler::{Language, Source};
use crate::running::Running;
use std::time::Duration;

const LANGUAGES: [Language; 3] = [Language::C99, Language::Cpp17, Language::Cpp20];

fn compile_and_run(source: &Source) {
    Running::start(&source.compile(), &[]).succeed(Duration::from_secs(20));
}

#[test]
fn each_header_stands_alone_and_in_any_order() {
    for name in ["header_ccoip_inet.c", "header_ccoip.c", "header_pccl.c", "header_order.c"] {
        for language in LANGUAGES {
            compile_and_run(&Source::program(name, language));
        }
    }
}

#[test]
fn values_and_layouts_are_those_of_the_specification() {
    for language in LANGUAGES {
        compile_and_run(&Source::program("values.c", language));
    }
}

#[test]
fn initialisers_compile_as_users_write_them() {
    let c = Source::program("initialisers.c", Language::C99);
    // Braces may be left out; some compilers mention it.
    compile_and_run(&c.flag("-Wno-missing-braces").flag("-Wno-missing-field-initializers"));
    let cpp = Source::program("initialisers.cpp", Language::Cpp20);
    compile_and_run(&cpp.flag("-Wno-missing-field-initializers"));
}
