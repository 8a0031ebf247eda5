//! Devices of tests that do one thing of their own, and leave the rest to the device below.

/// Within `impl Device`: what hardly any such device does itself. The device below is the field `inner`.
macro_rules! passed_on {
    () => {
        fn path(&self) -> &::std::path::Path {
            self.inner.path()
        }

        fn size_bytes(&self) -> u64 {
            self.inner.size_bytes()
        }

        fn flush(&self) -> ::pagefold_engine::Result<()> {
            self.inner.flush()
        }

        fn discard(&self, offset: u64, len_bytes: u64) -> ::pagefold_engine::Result<()> {
            self.inner.discard(offset, len_bytes)
        }

        fn stats(&self) -> &::pagefold_engine::device::DeviceStats {
            self.inner.stats()
        }
    };
}
