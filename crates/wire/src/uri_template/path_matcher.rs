use percent_encoding::percent_decode_str;

use super::target::{TargetError, check_host, parse_port};
use super::{Operator, TARGET_HOST, TARGET_PORT, Template, TemplateError, TemplatePart};

/// The proxy's side of a [`Template`]: it finds the target in a request's path.
///
/// It accepts only paths to which the template expands: the variables are in the template's order,
/// and there are no further query parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMatcher {
    steps: Vec<MatchStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MatchStep {
    Literal(String),
    Value {
        variable: Variable,
        /// The character after the value, or `None` if the value extends to the end of the path.
        end: Option<char>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Host,
    Port,
}

impl PathMatcher {
    /// Creates a matcher for a template.
    ///
    /// # Errors
    ///
    /// The template has other variables than `target_host` and `target_port`, has one of them
    /// twice, or has no reserved character (such as "/") after one of them. A path could otherwise
    /// identify several targets.
    pub fn new(template: &Template) -> Result<Self, TemplateError> {
        let mut steps = Vec::new();
        for part in &template.parts {
            match part {
                TemplatePart::Literal(literal) => push_literal(&mut steps, literal),
                TemplatePart::Expression { operator, variables } => {
                    push_expression(&mut steps, *operator, variables)?;
                }
            }
        }
        set_ends(&mut steps)?;
        Ok(Self { steps })
    }

    /// Returns the target's host, percent-decoded, and its port, or `None` if the path does not
    /// match the template.
    ///
    /// # Errors
    ///
    /// The path matches the template, but does not identify a valid target.
    pub fn match_path(&self, path: &str) -> Option<Result<(String, u16), TargetError>> {
        let mut rest = path;
        let (mut host, mut port) = ("", "");
        for step in &self.steps {
            match step {
                MatchStep::Literal(literal) => rest = rest.strip_prefix(literal.as_str())?,
                MatchStep::Value { variable, end } => {
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
        Err(_) => Err(TargetError::Utf8(value.into())),
    }
}

fn push_literal(steps: &mut Vec<MatchStep>, literal: &str) {
    match steps.last_mut() {
        Some(MatchStep::Literal(last)) => last.push_str(literal),
        Some(MatchStep::Value { .. }) | None => steps.push(MatchStep::Literal(literal.to_owned())),
    }
}

/// Appends the steps of an expression, in the form of its expansion (RFC 6570 §3.2.1).
fn push_expression(
    steps: &mut Vec<MatchStep>,
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
            _ => return Err(TemplateError::VariableUnknown(name.into())),
        };
        let is_repeated = steps.iter().any(
            |step| matches!(step, MatchStep::Value { variable: earlier, .. } if *earlier == variable),
        );
        if is_repeated {
            return Err(TemplateError::VariableRepeated(name.into()));
        }
        steps.push(MatchStep::Value { variable, end: None });
    }
    Ok(())
}

/// Sets the end of each value: the character that follows it. Expanded values must not contain that
/// character.
fn set_ends(steps: &mut [MatchStep]) -> Result<(), TemplateError> {
    let mut following: Option<MatchStep> = None;
    for step in steps.iter_mut().rev() {
        if let MatchStep::Value { variable, end } = step {
            *end = match &following {
                None => None,
                Some(MatchStep::Literal(literal)) => literal.chars().next(),
                Some(MatchStep::Value { .. }) => return Err(ambiguous(*variable)),
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

/// Returns whether an expanded value can contain the character. Simple and form expansion keep only
/// unreserved characters and encode all others with "%" (RFC 6570 §3.2.1).
fn is_in_values(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~%".contains(character)
}
