//! Reads a vector file, and says what is wrong with one: in which file, case, step and field.
//!
//! Numbers stay integers all the way: many are above 2^53, where a double would round them.

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};
use thiserror::Error;
use tollgate_core::LimitError;
use tollgate_core::store::StoreError;

/// A vector file of a schema that is understood.
pub struct VectorFile {
    algorithm: String,
    in_micros: bool,
    cases: Vec<Value>,
}

/// One case: a fresh limiter, and what is done to it.
pub struct Case<'a> {
    /// What the case is about.
    pub name: &'a str,
    /// The parameters of its limiter.
    pub params: Fields<'a>,
    /// What is done, in order.
    pub steps: &'a [Value],
}

/// A JSON object whose fields are asked for by name and type.
#[derive(Clone, Copy)]
pub struct Fields<'a>(&'a Map<String, Value>);

/// What is wrong with a vector file.
#[derive(Debug, Error)]
pub enum Problem {
    /// A field that has to be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field has a value that cannot be used.
    #[error("{field} is {value}: it must be {allowed}")]
    Wrong {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        allowed: &'static str,
    },
    /// Parameters that make no limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Parameters that make a limit which the store cannot keep.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An algorithm that nobody knows.
    #[error("algorithm {0:?} is unknown: is it spelled as in the list of vector files?")]
    UnknownAlgorithm(String),
    /// Not JSON.
    #[error("not a JSON object: {0}")]
    Json(#[from] serde_json::Error),
    /// Cannot be read at all.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// A problem, and where it is.
#[derive(Debug, Error)]
#[error("{place}: {problem}")]
pub struct Malformed {
    place: String,
    problem: Problem,
}

impl VectorFile {
    /// Reads a file of schema 1.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let mut file: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let fields = Fields(&file);
        if fields.uint("schema")? != 1 {
            return Err(fields.wrong("schema", "1"));
        }
        let in_micros = fields.one_of("unit", &["ns", "us"], r#""ns" or "us""#)? == 1;
        let algorithm = fields.text("algorithm")?.to_owned();
        fields.list("cases")?;
        let cases = match file.remove("cases") {
            Some(Value::Array(cases)) => cases,
            _ => return Err(Problem::Missing("cases")),
        };
        Ok(Self { algorithm, in_micros, cases })
    }

    /// The name of the algorithm.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// Whether its unit of time is the microsecond; else it is the nanosecond.
    pub fn is_in_micros(&self) -> bool {
        self.in_micros
    }

    /// The cases, in order.
    pub fn cases(&self) -> impl Iterator<Item = Result<Case<'_>, Problem>> {
        self.cases.iter().map(|case| {
            let case = Fields::of("case", case)?;
            let (name, params, steps) = (case.text("name")?, case.object("params")?, case.list("steps")?);
            Ok(Case { name, params, steps })
        })
    }
}

impl<'a> Fields<'a> {
    /// The fields of an object that is itself called `name`.
    pub fn of(name: &'static str, value: &'a Value) -> Result<Self, Problem> {
        value.as_object().map(Self).ok_or_else(|| wrong(name, value, "an object"))
    }

    /// All fields.
    pub fn iter(self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.0.iter()
    }

    fn get<T>(
        self,
        name: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
        allowed: &'static str,
    ) -> Result<T, Problem> {
        let value = self.0.get(name).ok_or(Problem::Missing(name))?;
        read(value).ok_or_else(|| wrong(name, value, allowed))
    }

    /// A whole number that is not negative.
    pub fn uint(self, name: &'static str) -> Result<u64, Problem> {
        self.get(name, Value::as_u64, "a whole number from 0 to 18446744073709551615")
    }

    /// A whole number of 32 bits.
    pub fn uint32(self, name: &'static str) -> Result<u32, Problem> {
        let read = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        self.get(name, read, "a whole number from 0 to 4294967295")
    }

    /// Yes or no.
    pub fn flag(self, name: &'static str) -> Result<bool, Problem> {
        self.get(name, Value::as_bool, "true or false")
    }

    /// Text.
    pub fn text(self, name: &'static str) -> Result<&'a str, Problem> {
        self.get(name, Value::as_str, "text")
    }

    /// The position of a text among `choices`, which `allowed` lists in words.
    pub fn one_of(
        self,
        name: &'static str,
        choices: &[&str],
        allowed: &'static str,
    ) -> Result<usize, Problem> {
        let read = |value: &Value| choices.iter().position(|choice| value == choice);
        self.get(name, read, allowed)
    }

    /// An object that is not empty: one that is would check nothing.
    pub fn object(self, name: &'static str) -> Result<Self, Problem> {
        let read = |value: &'a Value| value.as_object().filter(|object| !object.is_empty());
        self.get(name, read, "an object with at least one field").map(Self)
    }

    /// A list that is not empty: one that is would check nothing.
    pub fn list(self, name: &'static str) -> Result<&'a [Value], Problem> {
        let read = |value: &'a Value| value.as_array().filter(|list| !list.is_empty());
        self.get(name, read, "a list with at least one entry").map(Vec::as_slice)
    }

    /// What to say of a field whose value is of the right type and still wrong.
    pub fn wrong(self, name: &'static str, allowed: &'static str) -> Problem {
        self.0.get(name).map_or(Problem::Missing(name), |value| wrong(name, value, allowed))
    }
}

/// The inputs of a step, as they stand in the file.
impl fmt::Display for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        let inputs = self.0.iter().filter(|(name, _)| *name != "expected");
        for (index, (name, value)) in inputs.enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}\"{name}\": {value}")?;
        }
        f.write_str("}")
    }
}

impl Problem {
    /// The problem, in a file as a whole.
    pub fn in_file(self, file: &str) -> Malformed {
        Malformed { place: file.to_owned(), problem: self }
    }

    /// The problem, somewhere in a file.
    pub fn at(self, file: &str, place: impl fmt::Display) -> Malformed {
        Malformed { place: format!("{file}, {place}"), problem: self }
    }
}

fn wrong(field: &'static str, value: &Value, allowed: &'static str) -> Problem {
    let value = match value {
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(object) if object.is_empty() => "an empty object".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => scalar.to_string(),
    };
    Problem::Wrong { field, value, allowed }
}
