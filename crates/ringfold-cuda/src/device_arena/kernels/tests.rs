use super::*;

fn specialisation(element: &'static str, bytes: usize, op: &'static str, world: usize) -> Specialisation {
    Specialisation { element, element_bytes: bytes, op, world, kind: KernelKind::AllReduce }
}

/// None if there is no compiler.
fn compiler() -> Option<&'static Compiler> {
    let compiler = Compiler::load(None);
    if let Err(why) = &compiler {
        eprintln!("skipped: {why}");
    }
    compiler.ok()
}

#[test]
fn every_element_and_operation_compiles() {
    let Some(compiler) = compiler() else { return };
    for (element, bytes, op, world) in [
        ("U8", 1, "BitXor", 2),
        ("I8", 1, "Avg", 3),
        ("U16", 2, "BitAnd", 4),
        ("I16", 2, "Max", 4),
        ("U32", 4, "BitOr", 8),
        ("I32", 4, "Prod", 8),
        ("U64", 8, "Avg", 2),
        ("I64", 8, "Min", 5),
        ("F16", 2, "Avg", 8),
        ("BF16", 2, "Max", 4),
        ("F32", 4, "Sum", 16),
        ("F64", 8, "Prod", 2),
        ("U32", 4, "Sum", 4),
    ] {
        for kind in [
            KernelKind::AllReduce,
            KernelKind::Fold,
            KernelKind::Move,
            KernelKind::Transfer,
            KernelKind::Window,
            KernelKind::Bridge,
            KernelKind::Combine,
        ] {
            let wanted = Specialisation { kind, ..specialisation(element, bytes, op, world) };
            let image = wanted.image("sm_90", compiler, None);
            assert!(image.unwrap().starts_with(b"\x7fELF"), "{element} {op} {kind:?}");
        }
    }
    let ptx = specialisation("F32", 4, "Sum", 4).image("compute_80", compiler, None).unwrap();
    assert!(String::from_utf8_lossy(&ptx).contains("ringfold_bulk"));
}

#[test]
fn code_is_cached_on_disk() {
    let Some(compiler) = compiler() else { return };
    let folder = std::env::temp_dir().join(format!("ringfold-kernels-{}", std::process::id()));
    let wanted = specialisation("F32", 4, "Max", 2);
    let image = wanted.image("sm_90", compiler, Some(&folder)).unwrap();
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    std::fs::write(&files[0], [b"\x7fELF", &image[..9]].concat()).unwrap();
    let again = wanted.image("sm_90", compiler, Some(&folder)).unwrap();
    assert_eq!(again.len(), 13, "the cached file is used");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn file_names_differ_for_different_code() {
    let base = specialisation("F32", 4, "Sum", 4);
    let name = |what: Specialisation, arch, version| what.file_name(arch, version);
    let all = [
        name(base, "sm_90", (13, 0)),
        name(base, "sm_80", (13, 0)),
        name(base, "sm_90", (12, 9)),
        name(Specialisation { world: 5, ..base }, "sm_90", (13, 0)),
        name(Specialisation { kind: KernelKind::Move, ..base }, "sm_90", (13, 0)),
    ];
    assert!((0..all.len()).all(|a| (0..a).all(|b| all[a] != all[b])), "{all:?}");
}
