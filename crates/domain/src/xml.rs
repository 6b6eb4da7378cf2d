//! A small tree of XML elements and its text form: indented, escaped, deterministic.

use std::fmt::{Display, Write as _};

#[derive(Debug)]
pub(crate) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Element>,
    text: String,
}

impl Element {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), children: Vec::new(), text: String::new() }
    }

    pub(crate) fn with_text(name: &'static str, text: impl Display) -> Self {
        Self { text: text.to_string(), ..Self::new(name) }
    }

    pub(crate) fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    pub(crate) fn attr_opt(self, name: &'static str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.attr(name, value),
            None => self,
        }
    }

    pub(crate) fn child(mut self, child: Self) -> Self {
        self.children.push(child);
        self
    }

    pub(crate) fn children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.children.is_empty() && self.text.is_empty()
    }

    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, 0);
        out
    }

    fn write(&self, out: &mut String, depth: usize) {
        let indent = "  ".repeat(depth);
        let _ = write!(out, "{indent}<{}", self.name);
        for (name, value) in &self.attributes {
            let _ = write!(out, " {name}='");
            escape(out, value);
            out.push('\'');
        }
        if self.is_empty() {
            out.push_str("/>\n");
            return;
        }
        out.push('>');
        if self.children.is_empty() {
            escape(out, &self.text);
        } else {
            out.push('\n');
            for child in &self.children {
                child.write(out, depth + 1);
            }
            out.push_str(&indent);
        }
        let _ = writeln!(out, "</{}>", self.name);
    }
}

/// Characters that XML 1.0 cannot carry are dropped: no value of a domain may break out of its place.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\u{FFFE}' | '\u{FFFF}' => {}
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Element;

    #[test]
    fn hostile_text_stays_in_its_place() {
        let element = Element::new("a").attr("b", "'/><evil x=\"").child(Element::with_text("c", "<&\u{1}>"));
        assert_eq!(element.render(), "<a b='&apos;/&gt;&lt;evil x=&quot;'>\n  <c>&lt;&amp;&gt;</c>\n</a>\n");
    }
}
