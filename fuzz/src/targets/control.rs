#[path = "../../../crates/server/src/control/activity.rs"]
pub mod activity;
#[path = "../../../crates/server/src/control/datasets.rs"]
pub mod datasets;
#[path = "../../../crates/server/src/control/device_figures.rs"]
pub mod device_figures;
#[path = "../../../crates/server/src/control/figures.rs"]
pub mod figures;
#[path = "../../../crates/server/src/control/frame.rs"]
pub mod frame;
#[path = "../../../crates/server/src/control/model.rs"]
pub mod model;
#[path = "../../../crates/server/src/control/pace.rs"]
pub mod pace;

use model::{Reply, Request, UnmountMode};

fn framed(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    match frame::write(&mut bytes, message, frame::REPLY_BYTES_MAX) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    vec![
        framed(&Request::Status {}),
        framed(&Request::Set { path: "db".into(), name: "compression".into(), value: "zstd-3".into() }),
        framed(&Request::Unmount { devices: vec![41], mode: UnmountMode::Lazy }),
        [framed(&Request::Sync {}), framed(&Request::Counters {})].concat(),
        framed(&serde_json::json!({"request": "set", "name": [[[[{}]]]], "value": 1e300})),
    ]
}

/// Decodes a conversation: frames until the bytes end, as requests and as replies.
pub(super) fn message(bytes: &[u8]) -> bool {
    let mut accepted = false;
    let mut stream = bytes;
    while let Ok(Some(request)) = frame::read::<Request>(&mut stream, frame::REQUEST_BYTES_MAX) {
        let again = framed(&request);
        let back = frame::read::<Request>(&mut &again[..], frame::REQUEST_BYTES_MAX);
        assert!(matches!(&back, Ok(Some(back)) if *back == request), "{request:?} became {back:?}");
        accepted = true;
    }
    let mut stream = bytes;
    while let Ok(Some(_)) = frame::read::<Reply>(&mut stream, frame::REPLY_BYTES_MAX) {
        accepted = true;
    }
    accepted
}
