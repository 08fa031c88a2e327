//! A disk that forgets: what a loss of power, or a kill, would leave of the state directory at every change.
//!
//! The store works on a real directory; beside it a model keeps, for every file and directory, what is there and what
//! was made durable. The rules are POSIX's, which are weaker than ext4's and xfs's, so what holds here holds there:
//!
//! - the content of a file is durable after `fsync` of the file; before that any part of it may be lost (here: all of it,
//!   or the last half);
//! - a name (created, renamed, exchanged, removed) is durable after `fsync` of its directory; before that each directory
//!   may have kept its old names or the new ones, whatever its neighbours did; `fsync` of a file does not save its name;
//! - a rename is all or nothing; a tree is removed one name after the other.
//!
//! Not modelled: modes (they are always the last ones), sectors that go bad, a disk that says "synced" and lies (but for
//! the seeded bugs), and one directory that keeps some of its new names and not the others.
//!
//! Invariant: the model changes only as the real directory does ([`Power::agrees`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use monky_deployd::drivers::store::disk::{Change, Disk};

/// What a path is.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    Dir(u32),
    File(u32, Arc<Vec<u8>>),
    Link(PathBuf),
}

/// A directory and all that is in it, by path relative to its parent.
pub type Image = BTreeMap<PathBuf, Entry>;

/// What is below `root`.
pub fn image_of(root: &Path) -> Image {
    fn walk(root: &Path, at: &Path, out: &mut Image) {
        for found in fs::read_dir(root.join(at)).unwrap() {
            let path = at.join(found.unwrap().file_name());
            let meta = fs::symlink_metadata(root.join(&path)).unwrap();
            let mode = meta.mode() & 0o7777;
            let entry = if meta.is_dir() {
                walk(root, &path, out);
                Entry::Dir(mode)
            } else if meta.is_symlink() {
                Entry::Link(fs::read_link(root.join(&path)).unwrap())
            } else {
                Entry::File(mode, Arc::new(fs::read(root.join(&path)).unwrap()))
            };
            out.insert(path, entry);
        }
    }
    let mut out = Image::new();
    walk(root, Path::new(""), &mut out);
    out
}

/// Makes it so.
pub fn restore(image: &Image, root: &Path) {
    for (path, entry) in image {
        let path = root.join(path);
        match entry {
            Entry::Dir(mode) => {
                fs::create_dir(&path).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
            Entry::File(mode, bytes) => {
                fs::write(&path, &**bytes).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
            }
            Entry::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

type Names = BTreeMap<OsString, usize>;

#[derive(Clone)]
enum Node {
    Dir { mode: u32, now: Names, durable: Names },
    File { mode: u32, now: Arc<Vec<u8>>, durable: Arc<Vec<u8>> },
    Link(PathBuf),
}

/// What is taken of the names and of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crash {
    /// The process was killed: everything that was done is there.
    Killed,
    /// Of what was not synced nothing is left.
    Lost,
    /// The names are there, content that was not synced is not.
    Emptied,
    /// The names are there, and of what was written last the first half.
    Torn,
    /// One of the directories that were changed kept its new names, the others did not.
    Mixed,
}

impl Crash {
    pub const ALL: [Crash; 5] = [Crash::Killed, Crash::Lost, Crash::Emptied, Crash::Torn, Crash::Mixed];
}

/// A bug of the store (or of a file system), to prove that it would be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Files are never synced.
    NoFileSync,
    /// Directories are never synced.
    NoDirSync,
    /// The directory that the state directory is in is never synced.
    NoParentSync,
    /// Files are synced after they got their name.
    RenameFirst,
    /// Files are written in place.
    InPlace,
    /// What a dead tick left is not swept.
    NoSweep,
}

struct Model {
    root: PathBuf,
    nodes: Vec<Node>,
    last_written: Option<usize>,
}

impl Model {
    fn of(root: &Path) -> Model {
        let top = Node::Dir { mode: 0o755, now: Names::new(), durable: Names::new() };
        let mut model = Model { root: root.to_owned(), nodes: vec![top], last_written: None };
        for (path, entry) in image_of(root) {
            let node = match entry {
                Entry::Dir(mode) => Node::Dir { mode, now: Names::new(), durable: Names::new() },
                Entry::File(mode, bytes) => Node::File { mode, now: Arc::clone(&bytes), durable: bytes },
                Entry::Link(target) => Node::Link(target),
            };
            let path = root.join(path);
            model.put(&path, node);
            model.sync(path.parent().unwrap());
        }
        model
    }

    fn find(&self, path: &Path) -> Option<usize> {
        let mut at = 0;
        for part in path.strip_prefix(&self.root).unwrap() {
            let Node::Dir { now, .. } = &self.nodes[at] else { return None };
            at = *now.get(part)?;
        }
        Some(at)
    }

    fn names(&mut self, path: &Path) -> (&mut Names, OsString) {
        let dir = self.find(path.parent().unwrap()).unwrap();
        let Node::Dir { now, .. } = &mut self.nodes[dir] else { panic!("{path:?} is in no directory") };
        (now, path.file_name().unwrap().to_owned())
    }

    fn put(&mut self, path: &Path, node: Node) {
        let id = self.nodes.len();
        self.nodes.push(node);
        let (names, name) = self.names(path);
        names.insert(name, id);
    }

    fn take(&mut self, path: &Path) -> usize {
        let (names, name) = self.names(path);
        names.remove(&name).unwrap()
    }

    fn sync(&mut self, path: &Path) {
        let id = self.find(path).unwrap();
        match &mut self.nodes[id] {
            Node::Dir { now, durable, .. } => durable.clone_from(now),
            Node::File { now, durable, .. } => durable.clone_from(now),
            Node::Link(_) => {}
        }
    }

    fn apply(&mut self, change: &Change<'_>) {
        match *change {
            // The lock's may be there.
            Change::Create(path) if self.find(path).is_some() => {}
            Change::Create(path) => {
                self.put(path, Node::File { mode: 0o600, now: Arc::default(), durable: Arc::default() });
            }
            Change::Write(path, bytes) => {
                let id = self.find(path).unwrap();
                let Node::File { now, .. } = &mut self.nodes[id] else { panic!("{path:?} is no file") };
                *now = Arc::new(bytes.to_vec());
                self.last_written = Some(id);
            }
            Change::Mode(path, to) => {
                let id = self.find(path).unwrap();
                match &mut self.nodes[id] {
                    Node::Dir { mode, .. } | Node::File { mode, .. } => *mode = to,
                    Node::Link(_) => panic!("{path:?} has no mode"),
                }
            }
            Change::SyncFile(path) | Change::SyncDir(path) => self.sync(path),
            Change::MakeDir(path) => {
                self.put(path, Node::Dir { mode: 0o700, now: Names::new(), durable: Names::new() });
            }
            Change::Link(path, target) => self.put(path, Node::Link(target.to_owned())),
            Change::Rename(from, to) | Change::RenameNew(from, to) => {
                let id = self.take(from);
                let (names, name) = self.names(to);
                names.insert(name, id);
            }
            Change::Exchange(one, other) => {
                let (a, b) = (self.take(one), self.take(other));
                let (names, name) = self.names(one);
                names.insert(name, b);
                let (names, name) = self.names(other);
                names.insert(name, a);
            }
            Change::RemoveFile(path) => {
                self.take(path);
            }
            Change::RemoveTree(_) => panic!("a tree goes one name after the other"),
        }
    }

    /// Every path in a tree, deepest first, the tree itself last.
    fn below(&self, path: &Path) -> Vec<PathBuf> {
        let mut out = Vec::new();
        if let Some(Node::Dir { now, .. }) = self.find(path).map(|id| &self.nodes[id]) {
            for name in now.keys() {
                out.extend(self.below(&path.join(name)));
            }
        }
        out.push(path.to_owned());
        out
    }

    fn image(&self, new_names: &dyn Fn(usize) -> bool, content: &dyn Fn(usize, &Node) -> Arc<Vec<u8>>) -> Image {
        let mut out = Image::new();
        let mut todo = vec![(PathBuf::new(), 0_usize)];
        while let Some((path, id)) = todo.pop() {
            let entry = match &self.nodes[id] {
                Node::Dir { mode, now, durable } => {
                    let names = if new_names(id) { now } else { durable };
                    todo.extend(names.iter().map(|(name, id)| (path.join(name), *id)));
                    Entry::Dir(*mode)
                }
                node @ Node::File { mode, .. } => Entry::File(*mode, content(id, node)),
                Node::Link(target) => Entry::Link(target.clone()),
            };
            if path != Path::new("") {
                out.insert(path, entry);
            }
        }
        out
    }

    /// What a crash just now could leave, each image once.
    fn images(&self) -> Vec<(Crash, Image)> {
        fn now(_: usize, node: &Node) -> Arc<Vec<u8>> {
            match node {
                Node::File { now, .. } => Arc::clone(now),
                Node::Dir { .. } | Node::Link(_) => Arc::default(),
            }
        }
        fn durable(_: usize, node: &Node) -> Arc<Vec<u8>> {
            match node {
                Node::File { durable, .. } => Arc::clone(durable),
                Node::Dir { .. } | Node::Link(_) => Arc::default(),
            }
        }
        let mut out: Vec<(Crash, Image)> = Vec::new();
        let mut keep = |crash, image: Image| {
            if out.iter().all(|(_, other)| *other != image) {
                out.push((crash, image));
            }
        };
        keep(Crash::Killed, self.image(&|_| true, &now));
        keep(Crash::Lost, self.image(&|_| false, &durable));
        keep(Crash::Emptied, self.image(&|_| true, &durable));
        let half = |id: usize, node: &Node| {
            let all = now(id, node);
            let whole = Some(id) != self.last_written || all == durable(id, node);
            if whole { all } else { Arc::new(all[..all.len() / 2].to_vec()) }
        };
        keep(Crash::Torn, self.image(&|_| true, &half));
        for (id, node) in self.nodes.iter().enumerate() {
            if matches!(node, Node::Dir { now, durable, .. } if now != durable) {
                keep(Crash::Mixed, self.image(&|dir| dir == id, &durable));
            }
        }
        out
    }
}

/// A moment at which the power may fail.
pub struct Moment<W> {
    /// The change that it comes before, or the effect that it comes before or after.
    pub before: String,
    pub images: Vec<(Crash, Image)>,
    /// The world around the box just then.
    pub world: W,
}

/// The door to the disk, held by the power company.
pub struct Power<W> {
    inside: Mutex<Inside<W>>,
    /// Looked at, never changed here.
    world: Arc<Mutex<W>>,
    lie: Option<Lie>,
    /// From so many changes on there is no room.
    full_from: usize,
}

struct Inside<W> {
    model: Model,
    watched: bool,
    moments: Vec<Moment<W>>,
    changes: usize,
    /// What is synced later than the store says.
    postponed: Vec<PathBuf>,
    /// Where what is written to this name goes.
    in_place: Option<(PathBuf, PathBuf)>,
}

impl<W: Clone + Send> Power<W> {
    /// Over what is in `root`, all of it durable.
    pub fn new(root: &Path, world: Arc<Mutex<W>>, watched: bool, lie: Option<Lie>) -> Power<W> {
        let inside = Inside {
            model: Model::of(root),
            watched,
            moments: Vec::new(),
            changes: 0,
            postponed: Vec::new(),
            in_place: None,
        };
        Power { inside: Mutex::new(inside), world, lie, full_from: usize::MAX }
    }

    /// The same with no room from that change on.
    pub fn full_from(self, change: usize) -> Power<W> {
        Power { full_from: change, ..self }
    }

    /// How many changes were asked for.
    pub fn changes(&self) -> usize {
        self.inside.lock().unwrap().changes
    }

    /// The power may fail just now.
    pub fn moment(&self, before: &str) {
        let mut inside = self.inside.lock().unwrap();
        self.at(&mut inside, before);
    }

    pub fn moments(&self) -> Vec<Moment<W>> {
        std::mem::take(&mut self.inside.lock().unwrap().moments)
    }

    /// The model is what the real directory is.
    pub fn agrees(&self, root: &Path) {
        let inside = self.inside.lock().unwrap();
        let model = inside.model.images().swap_remove(0).1;
        assert!(self.lie.is_some() || model == image_of(root), "the model is not what the directory is");
    }

    fn at(&self, inside: &mut Inside<W>, before: &str) {
        if inside.watched {
            let world = self.world.lock().unwrap().clone();
            let images = inside.model.images();
            inside.moments.push(Moment { before: before.to_owned(), images, world });
        }
    }

    fn step(&self, inside: &mut Inside<W>, change: &Change<'_>) {
        self.at(inside, name(change));
        inside.model.apply(change);
    }

    /// What the model does in place of a change, as the seeded bug has it. False: the change itself.
    fn lies(&self, inside: &mut Inside<W>, change: &Change<'_>) -> bool {
        match (self.lie, *change) {
            (Some(Lie::NoFileSync), Change::SyncFile(_)) | (Some(Lie::NoDirSync), Change::SyncDir(_)) => true,
            (Some(Lie::NoParentSync), Change::SyncDir(path)) => path == inside.model.root,
            (Some(Lie::RenameFirst), Change::SyncFile(path)) => {
                inside.postponed.push(path.to_owned());
                true
            }
            (Some(Lie::RenameFirst), Change::Rename(from, to)) if inside.postponed.contains(&from.to_owned()) => {
                self.step(inside, change);
                self.step(inside, &Change::SyncFile(to));
                true
            }
            (Some(Lie::InPlace), Change::Create(path)) if is_temp(path) => {
                let name = path.file_name().unwrap().to_string_lossy().replacen(".tmp-", "", 1);
                let to = path.with_file_name(name);
                if inside.model.find(&to).is_none() {
                    self.step(inside, &Change::Create(&to));
                }
                inside.in_place = Some((path.to_owned(), to));
                true
            }
            (Some(Lie::InPlace), change) => match (inside.in_place.clone(), change) {
                (Some((temp, to)), Change::Write(path, bytes)) if temp == path => {
                    self.step(inside, &Change::Write(&to, b""));
                    self.step(inside, &Change::Write(&to, bytes));
                    true
                }
                (Some((temp, to)), Change::SyncFile(path)) if temp == path => {
                    self.step(inside, &Change::SyncFile(&to));
                    true
                }
                (Some((temp, _)), Change::Mode(path, _) | Change::Rename(path, _)) => temp == path,
                _ => false,
            },
            _ => false,
        }
    }
}

fn is_temp(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".tmp-"))
}

fn name(change: &Change<'_>) -> &'static str {
    match change {
        Change::Create(_) => "create",
        Change::Write(..) => "write",
        Change::Mode(..) => "mode",
        Change::SyncFile(_) => "sync file",
        Change::SyncDir(_) => "sync directory",
        Change::MakeDir(_) => "make directory",
        Change::Link(..) => "link",
        Change::Rename(..) => "rename",
        Change::RenameNew(..) => "rename over nothing",
        Change::Exchange(..) => "exchange",
        Change::RemoveFile(_) => "remove file",
        Change::RemoveTree(_) => "remove tree",
    }
}

impl<W: Clone + Send> Disk for Power<W> {
    fn change(&self, change: &Change<'_>, carry_out: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut inside = self.inside.lock().unwrap();
        let inside = &mut *inside;
        let needs_room =
            matches!(change, Change::Create(_) | Change::Write(..) | Change::MakeDir(_) | Change::Link(..));
        inside.changes += 1;
        if needs_room && inside.changes > self.full_from {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        if let (Some(Lie::NoSweep), Change::RemoveFile(path) | Change::RemoveTree(path)) = (self.lie, change)
            && is_temp(path)
        {
            return Ok(());
        }
        if self.lies(inside, change) {
            return carry_out();
        }
        match change {
            // Nothing here outlives the test: the model alone has to know.
            Change::SyncFile(_) | Change::SyncDir(_) => self.step(inside, change),
            Change::RemoveTree(path) => {
                for gone in inside.model.below(path) {
                    self.at(inside, name(change));
                    inside.model.apply(&Change::RemoveFile(&gone));
                }
                carry_out()?;
            }
            change => {
                self.at(inside, name(change));
                carry_out()?;
                inside.model.apply(change);
            }
        }
        Ok(())
    }
}
