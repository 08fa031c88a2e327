//! THE transition table: which stage may lead to which, and why.
//!
//! One table makes both the compile-time proof ([`Leads`]) and the list that draws the diagram ([`EDGES`]), so the
//! two cannot differ: an edge that is not here does not compile.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::stages::{Bundle, Checkin, Done, Healthy, Pull, Report, Secrets, Token, Up};

/// A stage of the machine.
pub trait Stage {
    /// Its name.
    const NAME: StageName;
}

/// Stage `Self` may lead to stage `T`. Implemented by the table below, and for a stage that was left as for the stage.
#[diagnostic::on_unimplemented(
    message = "no edge {Self} -> {T}; declare it in fsm/edges.rs",
    label = "this stage does not lead there"
)]
pub trait Leads<T: Stage>: Stage {}

/// A stage whose data was taken out of its flow: it is no stage to be in, and leads where the stage leads.
#[derive(Debug)]
pub struct Left<S>(PhantomData<S>);

impl<S> Left<S> {
    pub(super) const fn stage() -> Left<S> {
        Left(PhantomData)
    }
}

impl<S: Stage> Stage for Left<S> {
    const NAME: StageName = S::NAME;
}

impl<S: Leads<T>, T: Stage> Leads<T> for Left<S> {}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// From this stage
    pub from: StageName,
    /// to that one,
    pub to: StageName,
    /// when this is so.
    pub when: &'static str,
}

macro_rules! stages {
    ($( $stage:ident = $text:literal, $doc:literal; )*) => {
        /// The name of a stage.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum StageName { $( #[doc = $doc] $stage, )* }

        impl StageName {
            /// All of them, in order.
            pub const ALL: &'static [StageName] = &[ $( StageName::$stage, )* ];

            /// As it is written in reports and diagrams.
            pub const fn as_str(self) -> &'static str { match self { $( StageName::$stage => $text, )* } }
        }

        $( impl Stage for $stage { const NAME: StageName = StageName::$stage; } )*
    };
}

macro_rules! edges {
    ($( $from:ident -> $to:ident : $when:literal; )*) => {
        $( impl Leads<$to> for $from {} )*

        /// Every edge, in the order of the table.
        pub const EDGES: &[Edge] = &[
            $( Edge { from: StageName::$from, to: StageName::$to, when: $when }, )*
        ];
    };
}

stages! {
    Checkin = "checkin", "Awaits what tenancy wants.";
    Bundle = "bundle", "Awaits the bundle, and everything that may refuse it.";
    Token = "token", "Awaits a token that works.";
    Secrets = "secrets", "Awaits the secrets, then the complete release.";
    Pull = "pull", "Awaits the images.";
    Up = "up", "Awaits the promotion, then `up`.";
    Healthy = "healthy", "Awaits the verdict on the containers.";
    Report = "report", "Awaits that the outcome is durable, told, and cleaned up after.";
    Done = "done", "Awaits nothing.";
}

edges! {
    Checkin -> Bundle: "another bundle is desired, or the same again";
    Checkin -> Token: "nothing to deploy, but the token needs care";
    Checkin -> Up: "an apply was interrupted after promotion";
    Checkin -> Report: "nothing to do, held, too early, no room, or no answer";
    Bundle -> Token: "accepted";
    Bundle -> Report: "refused, or it could not be had";
    Token -> Secrets: "a token works";
    Token -> Report: "no token works, or it was only cared for";
    Secrets -> Token: "the token died: one re-login";
    Secrets -> Pull: "the release is complete";
    Secrets -> Report: "a secret or the release is not as it must be";
    Pull -> Up: "every image is here";
    Pull -> Report: "an image is not to be had";
    Up -> Healthy: "Compose brought it up";
    Up -> Up: "it could not be brought up: the last good release instead";
    Up -> Report: "it could not be brought up";
    Healthy -> Up: "it is unhealthy: the last good release instead";
    Healthy -> Report: "there is a verdict";
    Report -> Done: "the outcome is durable";
}

impl std::fmt::Display for StageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
