//! Makes paths: likely ones, which lead to files that may be there, and odd ones.

use super::Maker;
use crate::op::{Op, Path, Step, Target};

impl Maker {
    /// Returns steps that make directories of different owners and rules: anybody's, sticky, set-group-ID, private.
    pub(super) fn prelude(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |who: usize, op: Op| steps.push(Step { who, op });
        add(0, Op::Umask { mask: 0 });
        for (name, who, mode) in
            [(&b"a"[..], 0, 0o777), (b"b", 1, 0o1777), (b"c", 1, 0o2775), (b"a/d", 2, 0o755)]
        {
            add(who, Op::MakeDir { path: Path::new(name), mode: 0o777 });
            add(0, Op::Mode { target: Target::Path(Path::new(name), true), mode });
            self.dirs.push(name.to_vec());
        }
        let mask = self.pick(&[0, 0o022, 0o077, 0o002]);
        steps.push(Step { who: 0, op: Op::Umask { mask } });
        steps
    }

    pub(super) fn name(&mut self) -> Vec<u8> {
        match self.random.below(100) {
            0..88 => vec![self.pick(b"abcdefgh")],
            88..92 => vec![b'x'; 255],
            92..94 => vec![b'y'; self.pick(&[254, 256, 300])],
            94..97 => b"\x01\n\xff\xfe odd\\".to_vec(),
            97 => b".".to_vec(),
            98 => b"..".to_vec(),
            _ => "schöner Name".as_bytes().to_vec(),
        }
    }

    /// Returns a name in a directory that may be there.
    pub(super) fn fresh(&mut self) -> Vec<u8> {
        let at = self.random.below(self.dirs.len() as u64) as usize;
        let mut text = if self.dirs[at] == b"." { Vec::new() } else { [&self.dirs[at][..], b"/"].concat() };
        text.extend(self.name());
        text
    }

    pub(super) fn guess(&mut self, of_dirs: bool) -> Vec<u8> {
        let known = if of_dirs { &self.dirs } else { &self.files };
        if known.is_empty() {
            return self.fresh();
        }
        known[self.random.below(known.len() as u64) as usize].clone()
    }

    pub(super) fn finish(&mut self, mut text: Vec<u8>) -> Path {
        match self.random.below(200) {
            0..4 => text.push(b'/'),
            4 => text.extend(b"/."),
            5 => text.extend(b"/.."),
            6 => text = [b"./", &text[..]].concat(),
            7 => text = [b"a/../", &text[..]].concat(),
            8 => text.clear(),
            9 => text = [&b"./".repeat(2060)[..], &text[..]].concat(),
            10 => text = [&b"./".repeat(2000)[..], &text[..]].concat(),
            11 => text.extend(b"//h"),
            _ => {}
        }
        let base = self.chance(4).then(|| self.slot());
        Path { base, text }
    }

    /// Returns the path of a file or directory that may be there.
    pub(super) fn existing(&mut self) -> Path {
        let text = match self.random.below(10) {
            0..6 => self.guess(false),
            6..8 => self.guess(true),
            _ => self.fresh(),
        };
        self.finish(text)
    }

    pub(super) fn file(&mut self) -> Path {
        let text = if self.chance(80) { self.guess(false) } else { self.fresh() };
        self.finish(text)
    }

    pub(super) fn dir(&mut self) -> Path {
        let text = if self.chance(85) { self.guess(true) } else { self.fresh() };
        self.finish(text)
    }

    /// Returns a path for something new.
    pub(super) fn place(&mut self, is_dir: bool) -> Path {
        let text = if self.chance(85) { self.fresh() } else { self.guess(false) };
        let known = if is_dir { &mut self.dirs } else { &mut self.files };
        if !known.contains(&text) && text.iter().filter(|&&b| b == b'/').count() < 4 {
            known.push(text.clone());
            if known.len() > 12 {
                let at = 1 + self.random.below(11) as usize;
                known.remove(at);
            }
        }
        self.finish(text)
    }

    pub(super) fn target(&mut self) -> Target {
        if self.chance(30) {
            return Target::Slot(self.slot());
        }
        let path = self.existing();
        Target::Path(path, self.random.percent(75))
    }
}
