//! A bundle: the files of one release, `{"files": {PATH: TEXT | {"base64": …}}}`.
//!
//! Invariant: a [`Bundle`] holds at most [`MAX_FILES`] files of at most [`MAX_FILE_BYTES`] each and
//! [`MAX_BYTES`] together, under paths that can be written below any folder without leaving it, hiding each other,
//! or touching a file of the agent's own. The limits hold while it is read: no more memory than that is ever taken.

use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, BufReader, Read};
use std::ops::Bound;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;

use super::env_template::EnvTemplate;
use super::failure::{Code, Refusal};
use super::manifest::{Manifest, Scope};
use super::meta::Meta;
use super::requests::BundleFacts;
use super::sha::hex;
use super::{Sha, compose_file};

/// How many files a bundle may have.
pub const MAX_FILES: usize = 256;
/// How many bytes one file may have.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// How many bytes all files together may have.
pub const MAX_BYTES: usize = 16 << 20;

/// How many bytes of a path a file system takes (Linux: `PATH_MAX`, less room for the state directory).
const MAX_PATH_BYTES: usize = 1024;
/// How many bytes of one part of a path a file system takes (`NAME_MAX`).
const MAX_PART_BYTES: usize = 255;
/// How much JSON one file may take: the longest base64 (4/3), each character of it as `\u00XX` (6), and some air.
const MAX_JSON_BYTES_A_FILE: usize = 8 * MAX_FILE_BYTES + (64 << 10);

/// The file that Compose is given.
pub const COMPOSE: &str = "compose.yaml";
/// What the bundle says of itself.
pub const META: &str = "meta.json";
/// The secrets that it names.
pub const MANIFEST: &str = "manifest.json";
/// How they become variables.
pub const TEMPLATE: &str = "env.template";

/// The files that the agent writes beside a bundle's own.
const RESERVED: [&str; 2] = [".env", ".monky-deployd.yaml"];

/// A path of a bundle: relative, `/`-separated, no part empty, `.` or `..`, no control character and no backslash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundlePath(String);

impl BundlePath {
    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its parts, from the outside in.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl TryFrom<&str> for BundlePath {
    type Error = &'static str;

    fn try_from(path: &str) -> Result<BundlePath, &'static str> {
        if path.is_empty() {
            return Err("is empty");
        }
        if path.starts_with('/') {
            return Err("is absolute");
        }
        if path.contains('\\') {
            return Err("holds a backslash");
        }
        if path.contains(char::is_control) {
            return Err("holds a control character");
        }
        if path.len() > MAX_PATH_BYTES {
            return Err("is longer than 1024 bytes");
        }
        for part in path.split('/') {
            match part {
                "" => return Err("has an empty part"),
                "." | ".." => return Err("has a part `.` or `..`"),
                _ if part.len() > MAX_PART_BYTES => return Err("has a part longer than 255 bytes"),
                _ => {}
            }
        }
        Ok(BundlePath(path.to_owned()))
    }
}

impl Borrow<str> for BundlePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BundlePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The files of one release.
#[derive(Clone, PartialEq, Eq)]
pub struct Bundle {
    files: BTreeMap<BundlePath, Vec<u8>>,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It did not arrive whole: says nothing about the bundle.
    #[error("the bundle did not arrive whole: {0}")]
    Io(#[from] io::Error),
    /// It arrived, and is none.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Bundle {
    /// Reads a bundle.
    ///
    /// # Errors
    /// [`ReadError::Io`] if the reader fails or ends early, [`ReadError::Refused`] (`BUNDLE_INVALID`) if what it
    /// gives is no bundle.
    pub fn read(json: impl Read) -> Result<Bundle, ReadError> {
        let meter = Meter::default();
        meter.refill();
        let mut de = serde_json::Deserializer::from_reader(BufReader::new(Metered { inner: json, meter: &meter }));
        let read = de.deserialize_map(Top(&meter)).and_then(|files| de.end().map(|()| files));
        match read {
            Ok(files) => Ok(Bundle { files }),
            Err(_) if meter.spent.get() => {
                Err(refused("a file, or what stands between two files, is too large").into())
            }
            Err(e) => Err(match e.classify() {
                Category::Io => ReadError::Io(e.into()),
                Category::Eof => ReadError::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends too early")),
                Category::Syntax => refused(format!("it is not JSON: {}", cut(&e.to_string()))).into(),
                Category::Data => refused(cut(&e.to_string())).into(),
            }),
        }
    }

    /// What the contract calls the content sha: of the lines `hex(sha256(content))␠␠PATH\n` in byte order of PATH.
    pub fn content_sha(&self) -> Sha {
        sha_of_lines(self.files.iter())
    }

    /// A file's content.
    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }

    /// The files, in byte order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&BundlePath, &[u8])> {
        self.files.iter().map(|(path, content)| (path, content.as_slice()))
    }

    /// How many files it has.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// It has no file.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// How many bytes its files have together.
    pub fn total_bytes(&self) -> u64 {
        self.files.values().map(|content| content.len() as u64).sum()
    }

    /// The digest of a file's content, or of the paths and contents of all files below a folder (the empty path: of
    /// all files). None if there is neither.
    pub fn digest_below(&self, path: &str) -> Option<Sha> {
        if path.is_empty() {
            return (!self.files.is_empty()).then(|| self.content_sha());
        }
        if let Some(content) = self.get(path) {
            return Some(Sha::of(content));
        }
        let folder = format!("{path}/");
        let mut below = self
            .files
            .range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded))
            .take_while(|(path, _)| path.as_str().starts_with(&folder))
            .peekable();
        below.peek().is_some().then(|| sha_of_lines(below))
    }

    /// What the machine needs to know of it.
    ///
    /// # Errors
    /// `BUNDLE_INVALID` if `compose.yaml` or `meta.json` is missing or `meta.json` is malformed. What is wrong with
    /// the other files is told in the facts, so that the machine can name the more important thing first.
    pub fn facts(&self, header_sha: Option<String>, scope: &Scope<'_>) -> Result<BundleFacts, Refusal> {
        let needed = |path| self.get(path).ok_or_else(|| refused(format!("{path} is missing")));
        needed(COMPOSE)?;
        let meta = Meta::parse(needed(META)?)?;
        let manifest = match self.get(MANIFEST) {
            Some(json) => Manifest::parse(json, scope),
            None => Err(Refusal::new(Code::ManifestInvalid, "manifest.json is missing")),
        };
        Ok(BundleFacts {
            content_sha: self.content_sha(),
            header_sha,
            meta,
            manifest,
            template: self.template().map(|template| template.map(|template| template.variables())),
            compose: compose_file::check(self),
            size: (self.len(), self.total_bytes()),
        })
    }

    /// Its `env.template`; none without the file.
    pub fn template(&self) -> Option<Result<EnvTemplate, Refusal>> {
        self.get(TEMPLATE).map(EnvTemplate::parse)
    }
}

/// Shows paths and sizes: contents are long, and nothing that a log needs.
impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bundle { files } = self;
        f.debug_map().entries(files.iter().map(|(path, content)| (path.as_str(), content.len()))).finish()
    }
}

fn sha_of_lines<'a>(files: impl Iterator<Item = (&'a BundlePath, &'a Vec<u8>)>) -> Sha {
    let lines: String = files.map(|(path, content)| format!("{}  {path}\n", Sha::of(content))).collect();
    Sha::of(lines.as_bytes())
}

fn refused(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::BundleInvalid, detail)
}

/// As much of a message as a person wants to read: the parser's messages quote what they found.
fn cut(text: &str) -> String {
    match text.char_indices().nth(400) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// A path as two file systems might see it that disagree about case.
fn folded(path: &str) -> String {
    // Upper first: `ß` and `ss`, or the two small sigmas, are one to whoever ignores case.
    path.to_uppercase().to_lowercase()
}

/// How much JSON may still be read before the next file is complete.
#[derive(Default)]
struct Meter {
    left: Cell<usize>,
    spent: Cell<bool>,
}

impl Meter {
    fn refill(&self) {
        self.left.set(MAX_JSON_BYTES_A_FILE);
    }
}

struct Metered<'m, R> {
    inner: R,
    meter: &'m Meter,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.meter.left.get();
        if left == 0 {
            self.meter.spent.set(true);
            return Err(io::Error::other("too much JSON"));
        }
        let room = buf.len().min(left);
        let n = self.inner.read(buf.get_mut(..room).unwrap_or_default())?;
        self.meter.left.set(left.saturating_sub(n));
        Ok(n)
    }
}

/// `{"files": …}`; other keys are ignored.
struct Top<'m>(&'m Meter);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = BTreeMap<BundlePath, Vec<u8>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the key \"files\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut files = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "files" {
                map.next_value::<IgnoredAny>()?;
            } else if files.is_some() {
                return Err(A::Error::custom("the key \"files\" is there twice"));
            } else {
                files = Some(map.next_value_seed(Files(self.0))?);
            }
        }
        files.ok_or_else(|| A::Error::custom("the key \"files\" is missing"))
    }
}

/// `{PATH: CONTENT}`.
struct Files<'m>(&'m Meter);

impl<'de> DeserializeSeed<'de> for Files<'_> {
    type Value = BTreeMap<BundlePath, Vec<u8>>;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Self::Value, D::Error> {
        de.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Files<'_> {
    type Value = BTreeMap<BundlePath, Vec<u8>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut files = BTreeMap::new();
        let mut names = Names::default();
        let mut left = MAX_BYTES;
        while let Some(key) = map.next_key::<String>()? {
            if files.len() == MAX_FILES {
                return Err(A::Error::custom(format_args!("more than {MAX_FILES} files")));
            }
            let named = |what: &dyn fmt::Display| A::Error::custom(format_args!("the path {key:?} {what}"));
            let path = BundlePath::try_from(key.as_str()).map_err(|e| named(&e))?;
            names.claim(&path).map_err(|e| named(&e))?;
            let content = map.next_value_seed(Content { path: &key, left })?;
            left = left.saturating_sub(content.len());
            files.insert(path, content);
            self.0.refill();
        }
        Ok(files)
    }
}

/// The paths so far, as a file system sees them that ignores case.
#[derive(Default)]
struct Names {
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl Names {
    fn claim(&mut self, path: &BundlePath) -> Result<(), &'static str> {
        let folded = folded(path.as_str());
        if folded.split('/').next().is_some_and(|first| RESERVED.contains(&first)) {
            return Err("is reserved for the agent's own file");
        }
        if self.folders.contains(&folded) {
            return Err("is a file and also a folder of another");
        }
        for (end, _) in folded.match_indices('/') {
            let folder = folded.get(..end).unwrap_or_default();
            if self.files.contains(folder) {
                return Err("is below a path that is a file");
            }
            self.folders.insert(folder.to_owned());
        }
        if self.files.insert(folded) { Ok(()) } else { Err("is there twice (case does not tell paths apart)") }
    }
}

/// `TEXT` or `{"base64": …}`.
struct Content<'p> {
    path: &'p str,
    left: usize,
}

impl Content<'_> {
    fn fits<E: serde::de::Error>(&self, bytes: usize) -> Result<(), E> {
        if bytes > MAX_FILE_BYTES {
            Err(E::custom(format_args!("{:?} is larger than {MAX_FILE_BYTES} bytes", self.path)))
        } else if bytes > self.left {
            Err(E::custom(format_args!("with {:?} the files are larger than {MAX_BYTES} bytes together", self.path)))
        } else {
            Ok(())
        }
    }
}

impl<'de> DeserializeSeed<'de> for Content<'_> {
    type Value = Vec<u8>;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Vec<u8>, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Content<'_> {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text or {{\"base64\": …}} as content of {:?}", self.path)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
        self.fits(text.len())?;
        Ok(text.as_bytes().to_vec())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<u8>, A::Error> {
        let only = || A::Error::custom(format_args!("{:?} is an object with other keys than \"base64\"", self.path));
        if map.next_key::<String>()?.as_deref() != Some("base64") {
            return Err(only());
        }
        let encoded: String = map.next_value()?;
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(only());
        }
        // Before decoding, so that the memory for it is bounded too.
        self.fits((encoded.len() / 4 * 3).saturating_sub(2))?;
        let content = STANDARD
            .decode(encoded)
            .map_err(|e| A::Error::custom(format_args!("{:?} is not base64 (padded, one line): {e}", self.path)))?;
        self.fits(content.len())?;
        Ok(content)
    }
}

/// The sha256 of a text, in hex.
pub(super) fn hex_sha(text: &str) -> String {
    use sha2::Digest as _;
    hex(&sha2::Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        match Bundle::read(json.as_bytes()) {
            Err(ReadError::Refused(Refusal { code: Code::BundleInvalid, detail })) => detail,
            other => panic!("{other:?}"),
        }
    }

    fn of(files: &[(&str, &str)]) -> Bundle {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        Bundle::read(serde_json::json!({ "files": files }).to_string().as_bytes()).unwrap()
    }

    fn scope() -> Scope<'static> {
        Scope { kv_mount: "monky", env_id: "env-a" }
    }

    #[test]
    fn a_file_is_a_text_or_base64() {
        let bundle = Bundle::read(r#"{"files":{"a":"x\u00e9","b/c":{"base64":"AP8="}}}"#.as_bytes()).unwrap();
        assert_eq!(bundle.get("a"), Some("xé".as_bytes()));
        assert_eq!(bundle.get("b/c"), Some([0, 0xff].as_slice()));
        assert_eq!((bundle.len(), bundle.total_bytes()), (2, 5));
    }

    #[test]
    fn keys_beside_files_are_ignored_however_deep() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let json = format!(r#"{{"x":{deep},"files":{{"a":""}},"y":1}}"#);
        assert_eq!(Bundle::read(json.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn anything_but_an_object_with_files_is_refused() {
        for json in
            ["[]", "null", "1", "{}", r#"{"files":[]}"#, r#"{"files":null}"#, r#"{"files":{"a":1}}"#, "nonsense"]
        {
            refusal(json);
        }
        assert!(refusal(r#"{"files":{},"files":{}}"#).contains("twice"));
        assert!(refusal(r#"{"files":{}} x"#).contains("trailing"));
    }

    #[test]
    fn base64_is_strict() {
        for value in [
            r#"{"base64":"AP8"}"#,
            r#"{"base64":"AP8=\n"}"#,
            r#"{"base64":"AP9="}"#,
            r#"{"base64":"_-8="}"#,
            r#"{"base64":"","x":1}"#,
            r#"{"base64":"","base64":""}"#,
            r#"{"x":""}"#,
            r#"{}"#,
            r#"{"base64":1}"#,
        ] {
            refusal(&format!(r#"{{"files":{{"a":{value}}}}}"#));
        }
    }

    #[test]
    fn a_path_that_climbs_out_or_hides_is_refused() {
        for path in [
            "", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "./a", "a\\\\b", "a\\u0000", "a\\nb", "a\\u007f",
            "a\\u0085",
        ] {
            assert!(refusal(&format!(r#"{{"files":{{"{path}":""}}}}"#)).contains("path"), "{path}");
        }
        refusal(&format!(r#"{{"files":{{"{}":""}}}}"#, "a".repeat(256)));
        refusal(&format!(r#"{{"files":{{"{}":""}}}}"#, "a/".repeat(600) + "a"));
        assert!(BundlePath::try_from("..a/.b/c..").is_ok());
    }

    #[test]
    fn two_paths_that_are_one_to_some_file_system_are_refused() {
        for (a, b) in [
            ("a", "a"),
            ("a", "A"),
            ("a/É", "a/é"),
            ("straße", "STRASSE"),
            ("a", "a/b"),
            ("a/b/c", "A"),
            ("A/b", "a/B"),
        ] {
            refusal(&format!(r#"{{"files":{{"{a}":"","{b}":""}}}}"#));
        }
        assert_eq!(of(&[("a/b", ""), ("a/c", ""), ("a-b", "")]).len(), 3);
    }

    #[test]
    fn the_agents_own_files_are_reserved() {
        for path in [".env", ".ENV", ".env/x", ".monky-deployd.yaml", ".Monky-Deployd.YAML"] {
            assert!(refusal(&format!(r#"{{"files":{{"{path}":""}}}}"#)).contains("reserved"));
        }
        assert_eq!(of(&[("sub/.env", ""), (".env.example", "")]).len(), 2);
    }

    #[test]
    fn the_limits_are_exact() {
        let full = "x".repeat(MAX_FILE_BYTES);
        assert_eq!(of(&[("a", &full)]).total_bytes(), MAX_FILE_BYTES as u64);
        assert!(refusal(&format!(r#"{{"files":{{"a":"{full}y"}}}}"#)).contains("larger"));
        let encoded = STANDARD.encode(&full);
        assert!(Bundle::read(format!(r#"{{"files":{{"a":{{"base64":"{encoded}"}}}}}}"#).as_bytes()).is_ok());
        let encoded = STANDARD.encode(format!("{full}y"));
        assert!(refusal(&format!(r#"{{"files":{{"a":{{"base64":"{encoded}"}}}}}}"#)).contains("larger"));
        // The longest spelling of a file that is just not too large.
        let spelt = "\\u0001".repeat(MAX_FILE_BYTES);
        assert!(Bundle::read(format!(r#"{{"files":{{"a":"{spelt}"}}}}"#).as_bytes()).is_ok());

        let many = |n| (0..n).map(|i| format!(r#""f{i}":"""#)).collect::<Vec<_>>().join(",");
        assert!(Bundle::read(format!(r#"{{"files":{{{}}}}}"#, many(MAX_FILES)).as_bytes()).is_ok());
        assert!(refusal(&format!(r#"{{"files":{{{}}}}}"#, many(MAX_FILES + 1))).contains("256"));

        let heavy = (0..16).map(|i| format!(r#""f{i}":"{full}""#)).collect::<Vec<_>>().join(",");
        assert!(Bundle::read(format!(r#"{{"files":{{{heavy}}}}}"#).as_bytes()).is_ok());
        assert!(refusal(&format!(r#"{{"files":{{{heavy},"z":"1"}}}}"#)).contains("together"));
    }

    /// Gives its text over and over, and counts.
    struct Endless<'c>(&'static [u8], &'c Cell<usize>);

    impl Read for Endless<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(buf.len());
            buf[..n].copy_from_slice(&self.0[..n]);
            self.1.set(self.1.get() + n);
            Ok(n)
        }
    }

    #[test]
    fn an_endless_answer_is_refused_after_a_bounded_number_of_bytes() {
        for (start, more) in
            [(&br#"{"files":{"a":""#[..], &b"xxxxxxxx"[..]), (b"", b"        "), (br#"{"x":["#, b"0,0,0,0,")]
        {
            let read = Cell::new(0);
            let answer = Bundle::read(start.chain(Endless(more, &read)));
            assert!(matches!(answer, Err(ReadError::Refused(_))), "{answer:?}");
            assert!(read.get() <= MAX_JSON_BYTES_A_FILE + (16 << 10), "{}", read.get());
        }
    }

    #[test]
    fn what_did_not_arrive_whole_is_no_refusal() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::ConnectionReset))
            }
        }
        let whole = r#"{"files":{"a":"x","b":{"base64":"AP8="}}}"#;
        for end in 0..whole.len() {
            let part = &whole.as_bytes()[..end];
            assert!(matches!(Bundle::read(part), Err(ReadError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof));
            let reset = Bundle::read(part.chain(Broken));
            assert!(matches!(reset, Err(ReadError::Io(e)) if e.kind() == io::ErrorKind::ConnectionReset));
        }
    }

    #[test]
    fn a_folder_has_a_digest_of_its_paths_and_contents() {
        let bundle = of(&[("conf/a", "1"), ("conf/b/c", "2"), ("conf-x", "3"), ("conf.d", "4")]);
        assert_eq!(bundle.digest_below("conf-x"), Some(Sha::of(b"3")));
        assert_eq!(bundle.digest_below("conf"), of(&[("conf/a", "1"), ("conf/b/c", "2")]).digest_below(""));
        assert_ne!(bundle.digest_below("conf"), of(&[("conf/a", "1"), ("conf/b/d", "2")]).digest_below("conf"));
        assert_eq!(bundle.digest_below(""), Some(bundle.content_sha()));
        for nothing in ["con", "conf/", "conf/b/c/d", "x"] {
            assert_eq!(bundle.digest_below(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn facts_need_a_compose_file_and_a_meta_json_and_tell_the_rest() {
        let meta = r#"{"env_id":"env-a"}"#;
        let facts = |files: &[(&str, &str)]| of(files).facts(None, &scope());
        assert!(facts(&[("meta.json", meta)]).unwrap_err().detail.contains("compose.yaml"));
        assert!(facts(&[("compose.yaml", "")]).unwrap_err().detail.contains("meta.json"));
        let told = facts(&[("compose.yaml", "x: 1"), ("meta.json", meta), ("env.template", "A=${B}${C}${B}")]).unwrap();
        assert_eq!(told.manifest.unwrap_err().code, Code::ManifestInvalid);
        assert_eq!(told.template.unwrap().unwrap(), ["B", "C"]);
        assert_eq!(told.size, (3, 36));
    }

    #[test]
    fn debug_shows_no_content() {
        assert_eq!(format!("{:?}", of(&[("a", "hidden")])), r#"{"a": 6}"#);
    }
}
