use super::*;
use crate::nvrtc::{CompileRequest, Compiler};
use core::mem::offset_of;

/// The header and the structures of this file agree, by the device's compiler.
#[test]
fn handles_have_the_layout_of_the_device_header() {
    let compiler = match Compiler::load(None) {
        Ok(compiler) => compiler,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let sizes = [
        ("DeviceWindow", size_of::<WindowHandle>()),
        ("WindowPeer", size_of::<PeerRow>()),
        ("WindowSignals", SIGNAL_BYTES),
    ];
    let offsets = [
        ("DeviceWindow", "peers_", offset_of!(WindowHandle, peers)),
        ("DeviceWindow", "abort_", offset_of!(WindowHandle, abort_page)),
        ("DeviceWindow", "rank_", offset_of!(WindowHandle, rank)),
        ("DeviceWindow", "size_", offset_of!(WindowHandle, size)),
        ("WindowPeer", "memory", offset_of!(PeerRow, memory)),
        ("WindowPeer", "bytes", offset_of!(PeerRow, bytes)),
        ("WindowPeer", "signals", offset_of!(PeerRow, signals)),
    ];
    let mut source = "#include <torchcomms/window_device.hpp>\nusing namespace torchcomms;\n".to_owned();
    for (name, bytes) in sizes {
        source += &format!("static_assert(sizeof({name}) == {bytes} && alignof({name}) <= 8);\n");
    }
    for (name, part, at) in offsets {
        source += &format!("static_assert(__INTADDR__(&((static_cast<{name}*>(0))->{part})) == {at});\n");
    }
    let request =
        CompileRequest { source: &source, name: "layout.cu", arch: "sm_90", ..CompileRequest::default() };
    let compiled = compiler.compile(&request);
    assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
    // The check itself works.
    let wrong = source.replace("== 8)", "== 4)");
    assert!(compiler.compile(&CompileRequest { source: &wrong, ..request }).is_err());
}
