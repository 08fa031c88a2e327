//! The engine: a [`Flow`] is the machine in one stage, and `Flow::to` is the only way from a stage to another.
//!
//! Invariant: the fields are private to this file, which knows no stage; so no stage can forge a flow, forget
//! an effect that was asked for, or count ids differently.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::edges::{Leads, Left, Stage, StageName};
use super::event::{Note, Options};
use super::machine::{Machine, Transition};
use crate::effects::state::State;
use crate::effects::{Ask, Effect, EffectId, Event, LocalFacts, OpName, SaveState, Settings, Stamp};

/// What every stage knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// The configuration.
    pub settings: Settings,
    /// What the operator asked for.
    pub options: Options,
    /// What lay on the disk when the tick began, kept up to date.
    pub local: LocalFacts,
    /// What is remembered.
    pub state: State,
    /// What `state.json` holds.
    pub saved: Arc<State>,
    /// What is being written to it.
    pub saving: Option<Arc<State>>,
    /// Jitter and report ids come from it.
    pub seed: u64,
    /// When the tick began.
    pub began: Stamp,
    /// The time of the last input.
    pub now: Stamp,
    /// Tenancy answered the check-in.
    pub tenancy_up: bool,
    /// The token was replaced in this tick because it had died.
    pub relogged: bool,
    /// A lease was granted in this tick.
    pub leased: bool,
}

/// The machine in stage `S`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow<S> {
    // Boxed: a flow moves with every step, what it knows need not.
    core: Box<Core>,
    last_id: u32,
    waiting: Vec<(EffectId, OpName)>,
    #[serde(skip)]
    out: Vec<Effect>,
    #[serde(skip)]
    notes: Vec<Note>,
    #[serde(skip)]
    taken: Vec<(StageName, StageName)>,
    /// What is true in this stage.
    pub stage: S,
}

impl<S: Stage> Flow<S> {
    /// A machine that begins, in its first stage.
    pub(super) fn begin(core: Core, stage: S) -> Flow<S> {
        Flow {
            core: Box::new(core),
            last_id: 0,
            waiting: Vec::new(),
            out: Vec::new(),
            notes: Vec::new(),
            taken: Vec::new(),
            stage,
        }
    }

    /// Goes on to a stage that this one leads to.
    pub(super) fn to<T: Stage>(mut self, stage: T) -> Flow<T>
    where
        S: Leads<T>,
    {
        self.taken.push((S::NAME, T::NAME));
        self.into_stage(|_| stage)
    }

    /// Stays in this stage with other data.
    pub(super) fn stay(self, change: impl FnOnce(S) -> S) -> Flow<S> {
        self.into_stage(change)
    }

    /// Leaves this stage with its data: there is no staying behind.
    pub(super) fn leave(self) -> (Flow<Left<S>>, S) {
        let Flow { core, last_id, waiting, out, notes, taken, stage } = self;
        (Flow { core, last_id, waiting, out, notes, taken, stage: Left::stage() }, stage)
    }

    fn into_stage<T>(self, change: impl FnOnce(S) -> T) -> Flow<T> {
        let Flow { core, last_id, waiting, out, notes, taken, stage } = self;
        Flow { core, last_id, waiting, out, notes, taken, stage: change(stage) }
    }

    /// Asks for an effect.
    pub(super) fn ask(&mut self, request: impl Ask) -> EffectId {
        self.last_id = self.last_id.saturating_add(1);
        let effect = Effect { id: EffectId(self.last_id), op: request.into_op() };
        let id = effect.id;
        self.waiting.push((id, effect.op.name()));
        self.out.push(effect);
        id
    }

    /// Asks for an effect and goes on from here when it is answered.
    pub(super) fn then(mut self, request: impl Ask) -> Transition
    where
        Transition: From<Flow<S>>,
    {
        self.ask(request);
        self.into()
    }

    /// Asks for the state to be written as it is now.
    pub(super) fn ask_save(&mut self) -> EffectId {
        let state = Arc::new(self.core.state.clone());
        self.core.saving = Some(Arc::clone(&state));
        self.ask(SaveState { state })
    }

    /// Asks for the state to be written, and goes on from here when it is.
    pub(super) fn then_save(mut self) -> Transition
    where
        Transition: From<Flow<S>>,
    {
        self.ask_save();
        self.into()
    }

    /// The state was written as it was when that was asked for.
    pub(super) fn state_is_saved(&mut self) {
        if let Some(state) = self.core.saving.take() {
            self.core.saved = state;
        }
    }

    /// Says something to the journal.
    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Every effect asked for so far is answered.
    pub(super) fn settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What every stage knows.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// What every stage knows, to be changed.
    pub(super) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The effects whose answers are awaited.
    pub fn waiting(&self) -> &[(EffectId, OpName)] {
        &self.waiting
    }

    /// Takes an answer in: the flow with one effect less to wait for, or a note that says why it is refused.
    pub(super) fn accept(&mut self, now: Stamp, id: EffectId, event: &Event) -> Result<(), Note> {
        self.core.now = self.core.now.max(now);
        let Some(at) = self.waiting.iter().position(|(waiting, _)| *waiting == id) else {
            return Err(Note::warn(format!(
                "an answer to effect {} came ({}), which nothing waits for; dropped",
                id.0,
                event.as_str()
            )));
        };
        // Stages read the answers of one step in the order of emission; taken out of turn, one would be lost.
        let expected = match self.waiting.first() {
            Some((_, expected)) if at == 0 => *expected,
            first => {
                let (first, name) = first.map_or((id.0, "?"), |(first, name)| (first.0, name.as_str()));
                return Err(Note::warn(format!(
                    "an answer to effect {} came ({}) before the one to effect {first}, {name}; refused",
                    id.0,
                    event.as_str(),
                )));
            }
        };
        if event.answers() != expected {
            return Err(Note::warn(format!(
                "effect {} is {}, and {} came, which answers {}; refused",
                id.0,
                expected.as_str(),
                event.as_str(),
                event.answers().as_str()
            )));
        }
        self.waiting.remove(at);
        Ok(())
    }

    /// An answer that this step of the stage does not expect: nothing changes but a note.
    pub(super) fn unexpected(mut self, event: &Event) -> Transition
    where
        Transition: From<Flow<S>>,
    {
        self.note(Note::warn(format!("{} came in stage {}, which does not expect it", event.as_str(), S::NAME)));
        self.into()
    }
}

impl<S> From<Flow<S>> for Transition
where
    Machine: From<Flow<S>>,
{
    fn from(mut flow: Flow<S>) -> Transition {
        let effects = std::mem::take(&mut flow.out);
        let notes = std::mem::take(&mut flow.notes);
        let taken = std::mem::take(&mut flow.taken);
        Transition { next: Machine::from(flow), effects, notes, taken }
    }
}
