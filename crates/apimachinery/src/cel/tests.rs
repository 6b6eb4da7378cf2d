//! Expressions by data: a source, and the value or the words of the failure.

use serde_json::json;

use super::*;

fn bindings() -> Variables {
    let object = json!({"n": 3, "f": 1.5, "s": "hello", "l": [1, 2, 3], "m": {"a": 1, "b": 2}, "none": null,
        "items": [{"name": "x", "v": 1}, {"name": "y"}], "t": "2026-01-01T00:00:00Z"});
    Variables::default().with("o", value::plain(&object))
}

fn run(source: &str) -> Result<Value, String> {
    let mut budget = Budget::new(PER_CALL);
    Program::compile(source)?.evaluate(&bindings(), &mut budget).map_err(|fault| fault.to_string())
}

/// Each expression is true.
#[track_caller]
fn holds(sources: &[&str]) {
    for source in sources {
        assert_eq!(run(source), Ok(Value::Bool(true)), "{source}");
    }
}

#[track_caller]
fn fails(source: &str, expect: &str) {
    assert_eq!(run(source), Err(expect.to_owned()), "{source}");
}

#[test]
fn operators_and_macros() {
    holds(&[
        "o.n == 3 && o.f > 1.0 && o.s + '!' == 'hello!' && -o.n == -3",
        "o.n in o.l && 'a' in o.m && !('z' in o.m)",
        "has(o.s) && !has(o.z)",
        "o.l.all(x, x > 0) && o.l.exists(x, x == 2) && o.l.exists_one(x, x > 2)",
        "o.l.map(x, x * 2) == [2, 4, 6] && o.l.filter(x, x > 1) == [2, 3] && o.l.map(x, x > 1, x + 1) == [3, 4]",
        "o.m.all(k, o.m[k] > 0)",
        "o.n > 2 ? true : false",
        "size(o.s) == 5 && size('äöü') == 3 && o.l.size() == 3",
        "type(o.n) == int && type(o.s) == string && type([]) == list",
        "[1, 2] + [3] == o.l && {'a': 1, 'b': 2} == o.m",
        "10 / 3 == 3 && 10 % 3 == 1 && 2.5 * 2.0 == 5.0",
        "dyn(1) == 1u && 1 != 2",
    ]);
}

#[test]
fn failures_are_outweighed_by_what_decides() {
    holds(&[
        "o.items.exists(i, i.v == 1)",
        "!o.items.all(i, i.v == 2)",
        "true || o.missing == 1",
        "o.missing == 1 || true",
        "!(o.missing == 1 && false)",
    ]);
    fails("o.items.exists(i, i.v == 7)", "no such key: v");
    fails("o.missing == 1 || false", "no such key: missing");
}

#[test]
fn failures_have_words() {
    fails("o.z", "no such key: z");
    fails("o.l[9]", "index out of bounds: 9");
    fails("q.z", "undeclared reference to 'q' (in container '')");
    fails("o.n / 0", "division by zero");
    fails("o.n + 'x'", "no such overload");
    fails("9223372036854775807 + 1", "integer overflow");
    fails("o.s ? 1 : 2", "no such overload");
    fails("Foo{a: 1}", "undeclared reference to 'Foo'");
    assert!(run("o.").unwrap_err().starts_with("ERROR: <input>:1:"), "{:?}", run("o."));
}

#[test]
fn libraries_of_kubernetes() {
    holds(&[
        "quantity('1Gi').isGreaterThan(quantity('900Mi')) && isQuantity('20k') && quantity('50k').add(20) == quantity('50020')",
        "ip('192.168.0.1').family() == 4 && isIP('::1') && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
        "url('https://a.example:80/x').getHostname() == 'a.example' && isURL('https://a/b')",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && isSemver('1.0.0')",
        "'abc123'.find('[0-9]+') == '123' && 'a1b2'.findAll('[0-9]') == ['1', '2']",
        "[3, 1, 2].max() == 3 && [1, 2].sum() == 3 && ['b', 'a'].isSorted() == false",
        "sets.contains([1, 2, 3], [1]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 1], [1])",
        "format.dns1123Label().validate('Not Good').hasValue() && !format.named('dns1123Label').value().validate('good').hasValue()",
        "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'HeLLo'.lowerAscii() == 'hello'",
        "'%s has %d'.format(['x', 2]) == 'x has 2'",
        "timestamp(o.t).getFullYear() == 2026 && duration('1h') > duration('30m')",
        "math.greatest(1, 5, 3) == 5 && math.abs(-1) == 1",
        "base64.encode(b'hello') == 'aGVsbG8='",
        "string(1) == '1' && int('7') == 7 && double('1.5') == 1.5 && string(true) == 'true' && bool('true')",
        "o.s.matches('^h.*o$') && o.s.contains('ell') && o.s.startsWith('he') && o.s.endsWith('lo')",
        "'hello'.charAt(1) == 'e' && 'hello'.indexOf('l') == 2 && 'hello'.replace('l', 'L') == 'heLLo' && ' x '.trim() == 'x'",
    ]);
}

#[test]
fn optionals_and_two_variables() {
    holds(&[
        "o.?s.orValue('x') == 'hello' && o.?z.orValue('x') == 'x' && !o.?z.hasValue()",
        "o[?'z'].orValue(1) == 1 && o.l[?7].orValue(9) == 9 && o.?m.?a.value() == 1 && !o.?z.a.b.hasValue()",
        "optional.of(1).or(optional.of(2)).value() == 1 && optional.none().orValue(3) == 3",
        "o.?n.optMap(v, v * 2).value() == 6 && !optional.none().optMap(v, v).hasValue()",
        "[?o.?z, ?o.?n] == [3] && {?'a': o.?z} == {}",
        "cel.bind(x, o.n + 1, x * x) == 16",
        "o.l.all(i, v, v == i + 1) && o.m.exists(k, v, k == 'b' && v == 2) && o.l.existsOne(i, v, i == 1)",
        "o.l.transformList(i, v, i > 0, v * 10) == [20, 30] && o.m.transformMap(k, v, v + 1) == {'a': 2, 'b': 3}",
        "o.l.transformMapEntry(i, v, {v: i}) == {1: 0, 2: 1, 3: 2}",
        "[{'k': 2}, {'k': 1}].sortBy(e, e.k)[0].k == 1",
    ]);
}

#[test]
fn no_expression_hangs_or_crashes() {
    let long = |part: &'static str, n: usize| std::iter::repeat_n(part, n).collect::<Vec<_>>();
    let list = format!("[{}]", long("1", 300).join(","));
    let nested = format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))");
    fails(&nested, "operation cancelled: actual cost limit exceeded");
    let doubling = "o.s".to_owned() + &".replace('h', 'hhhhhhhhhhhhhhhh')".repeat(60);
    assert!(run(&doubling).is_err());
    fails("lists.range(1000000000).all(x, true)", "operation cancelled: actual cost limit exceeded");
    for hostile in [
        "(".repeat(5_000),
        "[".repeat(5_000),
        "-".repeat(20_000),
        "!".repeat(20_001) + "true",
        long("1", 30_000).join("+"),
        long("true", 9_000).join("&&"),
        "a".repeat(100_001),
        "a.".repeat(9_000) + "b",
        "true?".repeat(3_000) + "1",
    ] {
        // Whatever comes of it comes soon.
        let _ = run(&hostile);
    }
    let message = run(&"a".repeat(100_001)).unwrap_err();
    assert_eq!(message, "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100001, limit 100000");
}

proptest::proptest! {
    /// Whatever is written, each step of it ends with a value or a sentence.
    #[test]
    fn no_source_crashes(words in proptest::collection::vec(0..WORDS.len(), 0..40)) {
        let source: String = words.iter().map(|word| WORDS[*word]).collect();
        if let Ok(program) = Program::compile(&source) {
            let known = std::collections::HashMap::from([("o".to_owned(), types::Type::Dyn)]);
            let _ = check::check(&program, &known);
            let _ = program.evaluate(&bindings(), &mut Budget::new(10_000));
        }
    }
}

/// Pieces of expressions, so that many a random row of them parses.
const WORDS: [&str; 44] = [
    "o",
    ".n",
    ".s",
    ".l",
    ".m",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ",",
    ":",
    "?",
    ".?s",
    "[?",
    "1",
    "-",
    "2u",
    "1.5",
    "'a'",
    "b'a'",
    "null",
    "true",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " == ",
    " < ",
    " in ",
    " && ",
    " || ",
    "!",
    ".all(x, ",
    ".map(x, ",
    ".exists(i, v, ",
    "cel.bind(x, ",
    "duration('1h')",
    "timestamp(o.t)",
    ".substring(",
    "x",
    ".getFullYear()",
];
