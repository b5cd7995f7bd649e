//! The schema of policy files, for editors that complete and check as one types.

use serde_json::{Map, Value, json};

use super::fields::{CONDITION, Field, POLICY, Shape};

/// The JSON Schema of a policy file.
///
/// ```
/// let schema = tollgate_core::policy::schema();
/// assert!(schema["properties"]["limiters"].is_object());
/// ```
pub fn schema() -> Value {
    let mut condition = map(CONDITION);
    // `header x-api-key: sk_test_*` in one line.
    condition.insert(
        "patternProperties".to_owned(),
        json!({ format!("^header +{TOKEN}+$"): shape(Shape::Some(&Shape::Text)) }),
    );
    condition.insert("minProperties".to_owned(), json!(1));
    let mut schema = map(POLICY);
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("Tollgate policy"));
    schema.insert("required".to_owned(), json!(["limiters"]));
    schema.insert("$defs".to_owned(), json!({ "condition": condition }));
    Value::Object(schema)
}

fn map(fields: &[Field]) -> Map<String, Value> {
    let properties: Map<String, Value> =
        fields.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    let entries = [
        ("type", json!("object")),
        ("properties", properties.into()),
        ("additionalProperties", json!(false)),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn property(field: &Field) -> Value {
    match shape(field.shape) {
        Value::Object(mut property) => {
            property.insert("description".to_owned(), json!(field.about));
            property.into()
        }
        other => other,
    }
}

/// What names of headers are made of.
const TOKEN: &str = "[-A-Za-z0-9!#$%&'*+.^_`|~]";
/// A number, 1 or more.
const SOME: &str = "(0[0_]*)?[1-9]([0-9_]*[0-9])?";
/// A number.
const WHOLE: &str = "[0-9]([0-9_]*[0-9])?";
/// Those of a second and more.
const LONG_UNIT: &str = "(s|sec|seconds?|min|minutes?|h|hours?|d|days?)";
const UNIT: &str = "(ms|s|sec|seconds?|min|minutes?|h|hours?|d|days?)";

fn shape(of: Shape) -> Value {
    let text =
        |pattern: &str, example: &str| json!({ "type": "string", "pattern": pattern, "examples": [example] });
    match of {
        // YAML makes numbers and truth values of some words; names may look like that.
        Shape::Text => json!({ "type": ["string", "number", "boolean"] }),
        Shape::Words(words) => {
            // Some words are truth values to editors.
            let mut words: Vec<Value> = words.iter().map(|word| json!(word)).collect();
            for (word, truth) in [("off", false), ("true", true)] {
                if words.contains(&json!(word)) {
                    words.push(json!(truth));
                }
            }
            json!({ "enum": words })
        }
        Shape::Whole => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, text(&format!("^{WHOLE}$"), "1_000")] })
        }
        Shape::Within(least, most) => {
            let mut number = json!({ "type": "integer", "minimum": least });
            if let (true, Some(number)) = (most < u64::MAX, number.as_object_mut()) {
                number.insert("maximum".to_owned(), json!(most));
            }
            json!({ "anyOf": [number, text(&format!("^{SOME}$"), "1_000")] })
        }
        Shape::Rate => text(&format!("^ *{SOME} */ *({SOME})? *{UNIT} *$"), "50/s"),
        Shape::Time => text(&format!("^ *{WHOLE} *{UNIT} *$"), "28s"),
        Shape::SomeTime => text(&format!("^ *{SOME} *{UNIT} *$"), "28s"),
        Shape::Often => {
            text(&format!("^ *({SOME} *{LONG_UNIT}|(0[0_]*)?[1-9](_*[0-9]){{2,}} *ms) *$"), "500ms")
        }
        Shape::Share => text("^ *0*(100(\\.0{1,4})?|[0-9]{1,2}(\\.[0-9]{1,4})?) *% *$", "20%"),
        Shape::Header => text(&format!("^{TOKEN}+$"), "x-api-key"),
        Shape::Page => text("^https?://", "https://example.com/limits"),
        Shape::Store => text("^ *(memory *$|[a-z][-+a-z]*:)", "redis://cache:6379"),
        Shape::Size => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 0 }, text(&format!("^{WHOLE} *([KMG]i?B?|B|k)?$"), "512MB")] })
        }
        Shape::Network => text("^[0-9a-fA-F:.]+(/[0-9]{1,3})?$", "10.0.0.0/8"),
        Shape::Route => text("^([A-Za-z]+ +)?[/*]", "POST /v1/charges"),
        Shape::Some(one) => {
            let one = shape(*one);
            json!({ "anyOf": [one.clone(), { "type": "array", "items": one, "minItems": 1 }] })
        }
        Shape::List(one) => json!({ "type": "array", "items": shape(*one) }),
        Shape::Named(one) => json!({ "type": "object", "additionalProperties": shape(*one) }),
        Shape::Map(fields) => map(fields).into(),
        Shape::OneOf(fields, names) => {
            let mut one = map(fields);
            let required: Vec<Value> = names.iter().map(|name| json!({ "required": [name] })).collect();
            one.insert("oneOf".to_owned(), required.into());
            one.into()
        }
        Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(|one| shape(*one)).collect::<Vec<_>>() }),
        Shape::Condition => json!({ "$ref": "#/$defs/condition" }),
    }
}
