//! Effects as data: what the machine asks the world to do, and what the world may answer.
//!
//! One table (`ops!`) pairs each operation with its kind, its request and the type of its answer, so that
//! an operation without an answer, or an answer without an operation, does not compile.
//!
//! Invariant: nothing here reads a clock, a file, the network, the environment or randomness, and nothing
//! here can hold a secret's value. Free text from outside is [`Scrubbed`] before it gets in.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

pub mod bundle;
pub mod compose_file;
pub mod containers;
pub mod counted;
pub mod env_template;
pub mod failure;
pub mod local;
pub mod manifest;
pub mod meta;
pub mod model;
pub mod policy;
pub mod registry_auth;
pub mod report;
pub mod requests;
pub mod scrubbed;
pub mod settings;
pub mod sha;
pub mod stamp;
pub mod state;
pub mod strict_json;
pub mod words;

use serde::{Deserialize, Serialize};

pub use counted::counted;
pub use local::{GrantFacts, LocalFacts};
pub use requests::*;
pub use scrubbed::{Scrub, Scrubbed};
pub use settings::{OnUnhealthy, Settings};
pub use sha::Sha;
pub use stamp::Stamp;

/// What an operation may change; the driver of `--dry-run` executes only [`Kind::Read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Looks, changes nothing that anyone owns.
    Read,
    /// Takes, uses, extends or ends a credential at tenancy or OpenBao.
    Lease,
    /// Writes below the state directory.
    Write,
    /// Runs something that changes containers or images.
    Run,
    /// Tells tenancy an outcome.
    Report,
    /// Lets time pass.
    Wait,
}

/// Names one effect within a tick; counts from 1 in the order of emission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectId(pub u32);

/// One thing the machine wants done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Its name; the answer carries it back.
    pub id: EffectId,
    /// What to do.
    pub op: Op,
}

macro_rules! ops {
    ($( $(#[$doc:meta])* $kind:ident $op:ident($request:ty) => $event:ident($answer:ty); )*) => {
        /// Every operation a driver can be asked for.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "op", content = "with", rename_all = "snake_case")]
        pub enum Op { $( $(#[$doc])* $op($request), )* }

        /// Every answer the world can give, one for each [`Op`].
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "event", content = "data", rename_all = "snake_case")]
        pub enum Event { $( #[doc = concat!("Answers [`Op::", stringify!($op), "`].")] $event($answer), )* }

        /// The name of an operation, without its data.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum OpName { $( #[doc = concat!("[`Op::", stringify!($op), "`].")] $op, )* }

        impl OpName {
            /// All of them, in the order of the table.
            pub const ALL: &'static [OpName] = &[ $( OpName::$op, )* ];

            /// What it may change.
            pub const fn kind(self) -> Kind { match self { $( OpName::$op => Kind::$kind, )* } }

            /// As it is spelt in the table.
            pub const fn as_str(self) -> &'static str { match self { $( OpName::$op => stringify!($op), )* } }
        }

        impl Op {
            /// Its name, without its data.
            pub const fn name(&self) -> OpName { match self { $( Op::$op(_) => OpName::$op, )* } }
        }

        impl Event {
            /// The operation that this event answers.
            pub const fn answers(&self) -> OpName { match self { $( Event::$event(_) => OpName::$op, )* } }

            /// As it is spelt in the table.
            pub const fn as_str(&self) -> &'static str { match self { $( Event::$event(_) => stringify!($event), )* } }
        }

        $(
            impl Ask for $request {
                type Answer = $answer;
                fn into_op(self) -> Op { Op::$op(self) }
                fn answer(event: Event) -> Result<$answer, Event> {
                    match event { Event::$event(answer) => Ok(answer), other => Err(other) }
                }
                fn reply(answer: $answer) -> Event { Event::$event(answer) }
            }
        )*
    };
}

/// A request, paired with the type of its answer.
pub trait Ask: Sized {
    /// What the world answers.
    type Answer;
    /// The request as an operation.
    fn into_op(self) -> Op;
    /// The answer in an event, or the event back if it answers something else.
    fn answer(event: Event) -> Result<Self::Answer, Event>;
    /// The answer as an event.
    fn reply(answer: Self::Answer) -> Event;
}

ops! {
    /// Tells tenancy how the box is and asks what it should run.
    Read Checkin(CheckinRequest) => CheckedIn(Result<Desired, CallFault>);
    /// Fetches a bundle, reads it whole and keeps it at hand for the operations that name its sha.
    Read FetchBundle(FetchBundle) => BundleFetched(Result<Box<BundleFacts>, BundleFault>);
    /// Asks Docker and Compose for their versions.
    Read ProbeDocker(ProbeDocker) => DockerProbed(Result<DockerVersions, RunFault>);
    /// Unpacks a bundle into `releases/<sha>`, with an empty `.env`.
    Write StageBundle(StageBundle) => BundleStaged(Result<(), StoreFault>);
    /// Resolves the staged compose file without its variables.
    Read ReadModel(ReadModel) => ModelRead(Result<model::Model, ComposeFault>);
    /// Asks OpenBao whether a token lives.
    Read LookupToken(LookupToken) => TokenLookedUp(Result<TokenFacts, BaoFault>);
    /// Extends the saved token's life.
    Lease RenewToken(RenewToken) => TokenRenewed(Result<TokenFacts, BaoFault>);
    /// Asks tenancy for a deploy grant.
    Lease AskLease(AskLease) => LeaseAnswered(Result<Lease, LeaseFault>);
    /// Writes the leased grant to `grant.json`.
    Write SaveGrant(SaveGrant) => GrantSaved(Result<(), StoreFault>);
    /// Forgets a grant that is of no more use.
    Write DropGrant(DropGrant) => GrantDropped(Result<(), StoreFault>);
    /// Trades a grant for a token, which is held as the candidate until it is saved.
    Lease Login(Login) => LoggedIn(Result<TokenFacts, BaoFault>);
    /// Writes the candidate to `token.json`; it is the saved token from then on.
    Write SaveToken(SaveToken) => TokenSaved(Result<(), StoreFault>);
    /// Ends the token that the candidate replaced.
    Lease RevokeToken(RevokeToken) => TokenRevoked(Result<(), BaoFault>);
    /// Reads one KV v2 secret; the values stay in the vault, facts about them come back.
    Read ReadSecret(ReadSecret) => SecretRead(Result<SecretFacts, SecretFault>);
    /// Writes `.env`, the override and the Docker configuration of a staged release.
    Write WriteRelease(WriteRelease) => ReleaseWritten(Result<(), StoreFault>);
    /// Has Compose check the complete release, variables and all.
    Run CheckCompose(CheckCompose) => ComposeChecked(Result<(), ComposeFault>);
    /// Pulls the release's images.
    Run Pull(Pull) => Pulled(Result<RunDone, RunFault>);
    /// Points `current` at a release.
    Write Promote(Promote) => Promoted(Result<(), StoreFault>);
    /// Brings the promoted release up.
    Run Up(Up) => CameUp(Result<RunDone, RunFault>);
    /// Looks at every container of the project.
    Read Inspect(Inspect) => Inspected(Result<Vec<containers::Container>, RunFault>);
    /// Reads the last lines that some containers logged.
    Read ReadLogs(ReadLogs) => LogsRead(Result<Vec<LogTail>, RunFault>);
    /// Lets time pass until a moment, for a reason.
    Wait WaitUntil(WaitUntil) => Waited(());
    /// Writes `state.json`.
    Write SaveState(SaveState) => StateSaved(Result<(), StoreFault>);
    /// Writes a report to the outbox.
    Write SaveReport(SaveReport) => ReportSaved(Result<(), StoreFault>);
    /// Sends a report from the outbox.
    Report SendReport(SendReport) => ReportSent(Result<(), CallFault>);
    /// Takes a report out of the outbox.
    Write DropReport(DropReport) => ReportDropped(Result<(), StoreFault>);
    /// Removes the release folders that nothing needs.
    Write PruneReleases(PruneReleases) => ReleasesPruned(Result<(), StoreFault>);
    /// Removes images that the agent once pulled and no kept release needs.
    Run RemoveImages(RemoveImages) => ImagesRemoved(Result<RemovedImages, RunFault>);
}
