use super::*;

fn candidates(used: &[u64]) -> BTreeMap<Chunk, Candidate> {
    let chunk = |index| Chunk { device: 0, index };
    used.iter()
        .zip(0..)
        .map(|(used, index)| (chunk(index), Candidate { used_bytes: *used, segments: vec![] }))
        .collect()
}

#[test]
fn the_sparsest_chunks_are_folded_first_and_full_ones_never() {
    let found = candidates(&[CHUNK_BYTES, 100, CHUNK_BYTES / 2, 0]);
    let chosen: Vec<u32> = choose(&found, CHUNK_BYTES).iter().map(|chunk| chunk.index).collect();
    assert_eq!(chosen, [3, 1, 2]);
}

#[test]
fn a_pass_takes_no_more_than_its_output_holds() {
    let found = candidates(&[CHUNK_BYTES / 2, CHUNK_BYTES / 2, CHUNK_BYTES / 2]);
    assert_eq!(choose(&found, CHUNK_BYTES).len(), 2);
    assert_eq!(choose(&found, 0), []);
}
