//! Redirects of an origin (RFC 9110 §15.4).

use std::ops::RangeInclusive;

use tandem_node::error::ClientError;

use crate::{
    config::{HttpsUrl, Setting},
    error::TransferError,
};

/// The number of redirects that are followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxRedirs;

impl MaxRedirs {
    pub(crate) const DEFAULT: u8 = 10;
}

impl Setting for MaxRedirs {
    type Value = u8;
    // Each redirect costs a connection, so that a circle of redirects must not cost many.
    const ALLOWED: RangeInclusive<u8> = 0..=50;
}

/// The redirects of one fetch.
#[derive(Debug)]
pub(crate) struct Redirects {
    pub(crate) followed: u8,
    max: u8,
    is_upload: bool,
}

impl Redirects {
    pub(crate) fn new(max: u8, is_upload: bool) -> Self {
        Self { followed: 0, max, is_upload }
    }

    /// The URL to fetch after this error, if it is a redirect that may be followed. The error says
    /// where another redirect leads, and why it is not followed.
    pub(crate) fn follow(
        &mut self,
        from: &HttpsUrl,
        error: TransferError,
    ) -> Result<HttpsUrl, TransferError> {
        let TransferError::Client { error: ClientError::Redirected { url, status, location } } =
            error
        else {
            return Err(error);
        };
        let next = from.join(location.unescaped());
        let location = next.as_ref().map_or(location, |next| next.as_str().into());
        let refused = |reason: String| {
            let reason = reason.into();
            TransferError::Redirect { url, status, location, reason }
        };
        // RFC 9110 §15.4: only these two keep the method and the content of a request.
        if self.is_upload && !matches!(status, 307 | 308) {
            return Err(refused(
                "an upload follows only 307 and 308; send it to that URL".to_owned(),
            ));
        }
        let next = match next.map(HttpsUrl::try_from) {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => return Err(refused(error.to_string())),
            Err(error) => return Err(refused(format!("this is no URL: {error}"))),
        };
        if self.followed >= self.max {
            let reason = match self.max {
                0 => "--max-redirs 0 follows none; fetch that URL".to_owned(),
                max => format!("{max} redirects were followed already; --max-redirs N allows more"),
            };
            return Err(refused(reason));
        }
        self.followed += 1;
        tracing::info!(status, to = %next, "redirected");
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: &str = "https://a.example:4433/x/y?q=1";

    fn follow(redirects: &mut Redirects, status: u16, to: &str) -> Result<String, String> {
        let (url, location) = (FROM.into(), to.into());
        let error = ClientError::Redirected { url, status, location };
        let next = redirects.follow(&FROM.parse().unwrap(), TransferError::Client { error });
        next.map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_redirect_leads_to_an_https_url() {
        for (location, next) in [
            ("/z", "https://a.example:4433/z"),
            ("z?r=2", "https://a.example:4433/x/z?r=2"),
            ("?r=2", "https://a.example:4433/x/y?r=2"),
            ("//b.example/z", "https://b.example/z"),
            ("https://b.example#end", "https://b.example/"),
        ] {
            let mut redirects = Redirects::new(10, false);
            assert_eq!(follow(&mut redirects, 302, location).as_deref(), Ok(next), "{location}");
        }
        for (location, words) in [
            ("http://b.example/z", "redirects to http://b.example/z: scheme \"http\""),
            ("ftp://b.example/z", "ftp"),
            ("https://user:secret@b.example/", "user or password"),
            ("https://b.example:0/", "port 0"),
            ("https://", "no URL"),
        ] {
            let mut redirects = Redirects::new(10, false);
            let error = follow(&mut redirects, 302, location).unwrap_err();
            assert!(error.contains(words) && redirects.followed == 0, "{location}: {error}");
        }
    }

    #[test]
    fn the_number_of_redirects_is_bounded() {
        let mut redirects = Redirects::new(2, false);
        for _ in 0..2 {
            assert!(follow(&mut redirects, 301, "/z").is_ok());
        }
        let error = follow(&mut redirects, 301, "/z").unwrap_err();
        assert!(error.contains("2 redirects") && error.contains("--max-redirs"), "{error}");
        let error = follow(&mut Redirects::new(0, false), 301, "/z").unwrap_err();
        assert!(error.contains("https://a.example:4433/z: --max-redirs 0"), "{error}");
    }

    #[test]
    fn an_upload_follows_only_redirects_that_keep_its_method() {
        for (status, follows) in
            [(301, false), (302, false), (303, false), (307, true), (308, true)]
        {
            let result = follow(&mut Redirects::new(10, true), status, "/z");
            assert_eq!(result.is_ok(), follows, "{status}: {result:?}");
        }
    }

    #[test]
    fn the_document_on_threats_states_the_bounds() {
        let threats = include_str!("../../../docs/design/threats.md");
        let max = MaxRedirs::ALLOWED.end();
        let bounds = format!(
            "At most {} redirects, or as many as `--max-redirs` says ({max} at most)",
            MaxRedirs::DEFAULT
        );
        let threats = threats.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(threats.contains(&bounds), "{bounds}");
    }

    #[test]
    fn another_error_is_passed_on() {
        let url = FROM.parse().unwrap();
        let error = Redirects::new(10, false).follow(&url, TransferError::Interrupted);
        assert!(matches!(error, Err(TransferError::Interrupted)));
    }
}
