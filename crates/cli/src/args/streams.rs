//! Arguments of `send` and `receive`.

use clap::Args;

use super::Output;

/// See [`super::Verb::Send`].
#[derive(Args, Debug)]
pub struct Send {
    /// DATASET@NAME. With --resume the pool that has it, if that is not the one in which it was made.
    #[arg(required_unless_present = "resume")]
    pub snapshot: Option<String>,
    /// Only what changed since this snapshot, which the receiver has: DATASET@NAME, or NAME.
    #[arg(short = 'i', long = "from", value_name = "SNAPSHOT", conflicts_with = "resume")]
    pub from: Option<String>,
    /// Send pages as they are stored. They always are; for those who know ZFS.
    #[arg(short = 'w', long)]
    pub raw: bool,
    /// Go on with a stream that was interrupted: the receiver's property receive_resume_token.
    #[arg(short = 't', long, value_name = "TOKEN")]
    pub resume: Option<String>,
    /// Send nothing, and print about how much that would be.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// How to print that.
    #[command(flatten)]
    pub output: Output,
}

/// See [`super::Verb::Receive`].
#[derive(Args, Debug)]
pub struct Receive {
    /// POOL/DATASET.
    pub dataset: String,
    /// Give up what was changed in the dataset since its newest snapshot.
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Give up what was received in part.
    #[arg(short = 'A', long, conflicts_with = "force")]
    pub abort: bool,
    /// Keep what came of a stream that is interrupted. It always is; for those who know ZFS.
    #[arg(short = 's', hide = true)]
    pub keep: bool,
    /// Print what was received as JSON.
    #[arg(long)]
    pub json: bool,
}
