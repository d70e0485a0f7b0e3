use percent_encoding::percent_decode_str;

use super::target::{TargetError, check_host, parse_port};
use super::{Operator, Part, TARGET_HOST, TARGET_PORT, Template, TemplateError};

/// The proxy's side of a [`Template`]: finds the target in a request's path.
///
/// It takes what expanding the template gives, and nothing else: variables stand in the template's
/// order, and there are no further query parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMatcher {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Literal(String),
    Value {
        variable: Variable,
        /// What ends the value; without one it goes to the end of the path.
        end: Option<char>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Host,
    Port,
}

impl PathMatcher {
    /// For a template that has no other variables, each once, and a reserved character (such as
    /// "/") after each; otherwise a path could mean several targets.
    pub fn new(template: &Template) -> Result<Self, TemplateError> {
        let mut steps = Vec::new();
        for part in &template.parts {
            match part {
                Part::Literal(literal) => push_literal(&mut steps, literal),
                Part::Expression { operator, variables } => {
                    push_expression(&mut steps, *operator, variables)?;
                }
            }
        }
        set_ends(&mut steps)?;
        Ok(Self { steps })
    }

    /// The target's host (percent-decoded) and port; `None` if the path does not belong to the
    /// template, an error if it does but names no target.
    pub fn match_path(&self, path: &str) -> Option<Result<(String, u16), TargetError>> {
        let mut rest = path;
        let (mut host, mut port) = ("", "");
        for step in &self.steps {
            match step {
                Step::Literal(literal) => rest = rest.strip_prefix(literal.as_str())?,
                Step::Value { variable, end } => {
                    let len = end.map_or(Some(rest.len()), |end| rest.find(end))?;
                    let value;
                    (value, rest) = rest.split_at(len);
                    match variable {
                        Variable::Host => host = value,
                        Variable::Port => port = value,
                    }
                }
            }
        }
        rest.is_empty().then(|| parse_target(host, port))
    }
}

fn parse_target(host: &str, port: &str) -> Result<(String, u16), TargetError> {
    let host = percent_decode(host)?;
    check_host(&host)?;
    let port = parse_port(&percent_decode(port)?)?;
    Ok((host, port))
}

fn percent_decode(value: &str) -> Result<String, TargetError> {
    match percent_decode_str(value).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(TargetError::Utf8(value.to_owned())),
    }
}

fn push_literal(steps: &mut Vec<Step>, literal: &str) {
    match steps.last_mut() {
        Some(Step::Literal(last)) => last.push_str(literal),
        Some(Step::Value { .. }) | None => steps.push(Step::Literal(literal.to_owned())),
    }
}

/// RFC 6570 §3.2.1: what an expression expands to, in terms of its values.
fn push_expression(
    steps: &mut Vec<Step>,
    operator: Operator,
    variables: &[String],
) -> Result<(), TemplateError> {
    for (index, name) in variables.iter().enumerate() {
        let prefix = match (operator, index) {
            (Operator::Simple, 0) => String::new(),
            (Operator::Simple, _) => ",".to_owned(),
            (Operator::Query, 0) => format!("?{name}="),
            (Operator::Query | Operator::QueryContinuation, _) => format!("&{name}="),
        };
        if !prefix.is_empty() {
            push_literal(steps, &prefix);
        }
        let variable = match name.as_str() {
            TARGET_HOST => Variable::Host,
            TARGET_PORT => Variable::Port,
            _ => return Err(TemplateError::VariableUnknown(name.clone())),
        };
        let is_repeated = steps.iter().any(
            |step| matches!(step, Step::Value { variable: earlier, .. } if *earlier == variable),
        );
        if is_repeated {
            return Err(TemplateError::VariableRepeated(name.clone()));
        }
        steps.push(Step::Value { variable, end: None });
    }
    Ok(())
}

/// A value ends at the character that follows it, which therefore must not be one that an expanded
/// value contains.
fn set_ends(steps: &mut [Step]) -> Result<(), TemplateError> {
    let mut following: Option<Step> = None;
    for step in steps.iter_mut().rev() {
        if let Step::Value { variable, end } = step {
            *end = match &following {
                None => None,
                Some(Step::Literal(literal)) => literal.chars().next(),
                Some(Step::Value { .. }) => return Err(ambiguous(*variable)),
            };
            if end.is_some_and(is_in_values) {
                return Err(ambiguous(*variable));
            }
        }
        following = Some(step.clone());
    }
    Ok(())
}

fn ambiguous(variable: Variable) -> TemplateError {
    TemplateError::Ambiguous(match variable {
        Variable::Host => TARGET_HOST,
        Variable::Port => TARGET_PORT,
    })
}

/// RFC 6570 §3.2.1: simple and form expansion let only unreserved characters through, and encode
/// the rest with "%".
fn is_in_values(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~%".contains(character)
}
