//! `policy`: sets or shows which snapshots the server keeps of datasets.

use pagefold_server::failure::Result;
use pagefold_server::retention::POLICY;

use crate::args::{Get, Policy, Set};

/// Sets the policy, or prints the one that holds.
pub fn run(args: Policy) -> Result<()> {
    match args.policy {
        Some(policy) => {
            super::properties::set(&Set { words: vec![format!("{POLICY}={policy}"), args.dataset] })
        }
        None => super::properties::get(&Get {
            properties: POLICY.into(),
            targets: vec![args.dataset],
            recursive: args.recursive,
            output: args.output,
        }),
    }
}
