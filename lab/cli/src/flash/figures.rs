//! A document of figures as lines that people read.

use serde_json::Value;

/// Indentation of what belongs to the line above.
const INDENTATION: &str = "  ";
/// The field by which an item of a list is called.
const NAME_FIELD: &str = "kind";

/// One line for each value, indented by depth; lists of plain values on one line. What is
/// zero throughout is left out.
pub(super) fn lines(document: &Value) -> String {
    let mut text = String::new();
    match document {
        Value::Object(_) => add(&mut text, document, 0),
        Value::Null => {}
        other => {
            text.push_str(&plain(other));
            text.push('\n');
        }
    }
    text
}

fn add(text: &mut String, value: &Value, depth: usize) {
    let indentation = INDENTATION.repeat(depth);
    let mut entries: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.replace('_', " "), value))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(number, value)| (name_of(value).unwrap_or_else(|| number.to_string()), value))
            .collect(),
        _ => Vec::new(),
    };
    if value.is_object() {
        // As people read them: p99 before p999.
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let entries: Vec<_> = entries.into_iter().map(with_unit).collect();
    let is_leaf = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => items
            .iter()
            .all(|item| !item.is_object() && !item.is_array()),
        _ => true,
    };
    let width = entries
        .iter()
        .filter(|(_, _, value)| is_leaf(value))
        .map(|(name, ..)| name.chars().count())
        .max()
        .unwrap_or(0);
    for (name, time, value) in entries {
        if value.is_null() || (depth > 0 && name == NAME_FIELD) {
            continue;
        }
        if is_leaf(value) {
            let value = time.unwrap_or_else(|| plain(value));
            text.push_str(&format!("{indentation}{name:width$}  {value}\n"));
        } else if !is_all_zero(value) {
            text.push_str(&format!("{indentation}{name}\n"));
            add(text, value, depth + 1);
        }
    }
}

/// A time in nanoseconds, by its name, as people read it, without the unit in the name.
fn with_unit((name, value): (String, &Value)) -> (String, Option<String>, &Value) {
    let is_time = name.ends_with(" ns") && value.is_number();
    match (name.strip_suffix(" ns"), value.as_f64()) {
        (Some(short), Some(ns)) if is_time => (short.to_owned(), Some(time(ns)), value),
        _ => (name, None, value),
    }
}

/// `850 ns`, `12.3 µs`, `4.56 ms`, `7.89 s`
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// The name of an item of a list, if it has one.
fn name_of(item: &Value) -> Option<String> {
    item.get(NAME_FIELD)?.as_str().map(str::to_owned)
}

fn is_all_zero(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_all_zero),
        Value::Array(items) => items.iter().all(is_all_zero),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Null => true,
        Value::String(_) | Value::Bool(_) => false,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Number(number) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_are_lines() {
        let document = json!({
            "reads": 5,
            "hit_rate": 0.5,
            "nothing": null,
            "commands": [{ "kind": "read", "sectors": 8 }],
            "idle": { "erases": 0, "list": [{ "reads": 0 }] },
            "wear": { "erases": [1, 2], "is_worn": false },
        });
        let expected = "commands\n  read\n    sectors  8\nhit rate  0.500\nreads     5\nwear\n  erases   1 2\n  is worn  no\n";
        assert_eq!(lines(&document), expected);
        assert_eq!(lines(&Value::Null), "");
    }

    /// p999 was before p99, and both were in nanoseconds.
    #[test]
    fn times_are_in_order_and_have_units() {
        let document = json!({
            "p999_ns": 4_560_000, "p99_ns": 12_345, "min_ns": 850, "max_ns": 7_890_000_000_u64,
            "mean_ns": 1234.5,
        });
        let expected = "max   7.89 s\nmean  1.2 µs\nmin   850 ns\np99   12.3 µs\np999  4.56 ms\n";
        assert_eq!(lines(&document), expected);
    }
}
