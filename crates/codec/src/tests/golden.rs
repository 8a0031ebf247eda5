//! A stored model and record: what was written is read by every later version, or the version is another one.

use super::model_of;
use crate::testing::{Random, Schema, heap_page};
use crate::{Model, Scratch};

/// The pages that the model was learned from; the record is that of the second.
fn pages() -> Vec<Vec<u8>> {
    let mut random = Random::new(2026);
    let schema = Schema::plain(1024);
    (0..6).map(|block| heap_page(&mut random, &schema, block)).collect()
}

/// A model before it is compressed.
const MODEL: &str = "\
    80080100ab6bbc050481a0a0c20181aca0c20181a8a0c20181a4a0c201000304040000000100b59182dc0a0106000401\
    000508086465706f7369747300096361726566756c6c7905736c65657001780566696e616c0a475245454e204c414e45\
    09667572696f75736c7900040800021e0103ff010600010f030f011f011f019e010103ff010600010001000100030101\
    f9010103ff010403010b050001ee010101ff0101ff020105ff0107000525050505090501050106c4010105ff0102001f\
    fe010102ff010306020301f4010101ff0101ff020108ff010500570047003a0027fb010101ff0101ff020101ff0101ff\
    020101ff0101ff020101ff0101ff020101ff0101ff020104ff010301080007fc010101ff0101ff020101ff0101ff0201\
    01ff0101ff020101ff0101ff020101ff0101ff020104ff0103000c0003fd010106ff0115061a0e010101010100010003\
    000100010004000100015301000101020003010201030007000100027f010105ff0102001ffe010108ff010900300024\
    002000200020001d00170017f7010101ff0101ff020101ff0101ff020101ff0101ff020105ff0102001ffe010108ff01\
    05024a013a013a0141f6010101ff0101ff0200";
const RECORD: &str = "\
    10345c76a10300698f0515acd894d69b6bb1dd6796c993946b58186cacd0e85f4de1922b84853e519e48a81e6d425134\
    38b4aa343813bb0381aa256c0800814401e5220080250a280d96260381be14028055001b16581502823c0701824704a0\
    06e0080081450ecd10770202816b20200159110280a70e601ee6000380520c01804f16690200810381c7260281470f72\
    0e010f";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn stored_models_and_records_are_read() {
    let model = Model::from_plain(&bytes(MODEL)).unwrap();
    let mut page = vec![0; 1024];
    model.decode(&mut Scratch::new(), &bytes(RECORD), &mut page).unwrap();
    assert!(page == pages()[1]);
}

#[test]
fn models_and_records_are_written_as_they_were() {
    let model = model_of(&pages());
    assert_eq!(hex(&model.to_plain()), MODEL);
    let mut record = vec![];
    assert!(model.encode(&mut Scratch::new(), &pages()[1], &mut record));
    assert_eq!(hex(&record), RECORD);
}
