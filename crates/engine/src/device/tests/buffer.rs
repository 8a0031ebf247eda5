use crate::device::AlignedBuf;
use crate::limits::BLOCK_BYTES;

#[test]
fn lengths_are_whole_blocks_and_starts_are_aligned() {
    for (asked, got) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (3 << 20, 3 << 20)] {
        for buf in [AlignedBuf::zeroed(asked), AlignedBuf::scratch(asked)] {
            assert_eq!(buf.len(), got);
            assert!(buf.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
        }
    }
}

#[test]
fn zeroed_is_zero_even_when_the_memory_was_used_before() {
    for _ in 0..40 {
        let mut buf = AlignedBuf::scratch(12 << 10);
        buf.fill(0xA5);
        let mut other = AlignedBuf::scratch(16 << 10);
        other.fill(0x5A);
        drop((buf, other));
        let clean = AlignedBuf::zeroed(13 << 10);
        assert!(clean.iter().all(|&b| b == 0));
    }
}

#[test]
fn scratch_reuses_memory_of_its_thread() {
    let first = AlignedBuf::scratch(64 << 10);
    let at = first.as_ptr().addr();
    drop(first);
    assert_eq!(AlignedBuf::scratch(64 << 10).as_ptr().addr(), at);
}

#[test]
fn large_buffers_are_reused_by_all_threads() {
    // Their content tells which they are; other tests may take some of them meanwhile.
    let marked = std::thread::spawn(|| {
        let mut bufs: Vec<_> = (0..6).map(|_| AlignedBuf::scratch(512 << 10)).collect();
        bufs.iter_mut().for_each(|buf| buf[..5].copy_from_slice(b"large"));
        drop(bufs);
    });
    marked.join().unwrap();
    let bufs: Vec<_> = (0..6).map(|_| AlignedBuf::scratch(512 << 10)).collect();
    assert!(bufs.iter().any(|buf| buf.starts_with(b"large")));
}

#[test]
fn truncate_shortens_and_never_lengthens() {
    let mut buf = AlignedBuf::zeroed(64 << 10);
    buf.truncate(5000);
    assert_eq!(buf.len(), 8192);
    buf.truncate(64 << 10);
    assert_eq!(buf.len(), 8192);
    // The whole capacity goes back, not the truncated length.
    drop(buf);
    assert_eq!(AlignedBuf::scratch(64 << 10).len(), 64 << 10);
}

#[test]
fn from_bytes_pads_with_zeros() {
    let mut used = AlignedBuf::scratch(4096);
    used.fill(9);
    drop(used);
    let buf = AlignedBuf::from_bytes(b"abc");
    assert_eq!(&buf[..3], b"abc");
    assert!(buf[3..].iter().all(|&b| b == 0));
}
