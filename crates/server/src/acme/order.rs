//! One order of a certificate (RFC 8555 §7.4), with the proof by HTTP (§8.3).

use std::{collections::BTreeMap, time::Duration};

use http::StatusCode;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rustls::crypto::ring;
use tandem_net::admin::{Address, AdminListener, Answer, answer, text};
use tokio::time;

use super::{folder::Folder, renewals::RenewalFailure};
use crate::tls::AcmeSetup;

/// RFC 8555 §8.3: where the server looks for the proof.
const PATH: &str = "/.well-known/acme-challenge/";

/// The time of a whole order, in which the server asks from several places.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long the server may take for a step.
const STEP: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(60));

/// Orders a certificate and writes it into the folder.
pub(super) async fn certificate(
    setup: &AcmeSetup,
    folder: &Folder<'_>,
) -> Result<(), RenewalFailure> {
    let too_late = |_| RenewalFailure::Refused(format!("it takes more than {PATIENCE:?}").into());
    time::timeout(PATIENCE, order(setup, folder)).await.map_err(too_late)?
}

async fn order(setup: &AcmeSetup, folder: &Folder<'_>) -> Result<(), RenewalFailure> {
    let account = account(setup, folder).await?;
    let names: Vec<_> = setup.acme_domain.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await?;
    let proofs = proofs(&mut order).await?;
    let listener = AdminListener::bind(&Address::Tcp(setup.acme_listen))
        .map_err(|error| RenewalFailure::Listen { address: setup.acme_listen, error })?;
    let proving = prove(&mut order);
    tokio::select! {
        proven = proving => proven?,
        () = listener.serve_everybody(|path| proof(path, &proofs)) => {}
    }
    drop(listener);
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&STEP).await?;
    folder.keep_certificate(&chain, &key)?;
    Ok(())
}

/// The account of the folder, or a new one.
async fn account(setup: &AcmeSetup, folder: &Folder<'_>) -> Result<Account, RenewalFailure> {
    // The library takes the cryptography of the process, which rustls does not choose by itself, as it has that of ring
    // and of AWS-LC. An error: the embedding program has chosen.
    ring::default_provider().install_default().ok();
    let builder = || match &setup.acme_ca {
        Some(file) => Account::builder_with_root(file),
        None => Account::builder(),
    };
    if let Some(credentials) = folder.account() {
        return Ok(builder()?.from_credentials(credentials).await?);
    }
    let contact = setup.acme_contact.as_ref().map(|mail| format!("mailto:{mail}"));
    let contact: Vec<_> = contact.as_deref().into_iter().collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) =
        builder()?.create(&new, setup.acme_directory.clone(), None).await?;
    folder.keep_account(credentials)?;
    Ok(account)
}

/// What to answer at which path, so that the server sees that the names are ours.
async fn proofs(order: &mut Order) -> Result<BTreeMap<String, String>, RenewalFailure> {
    let mut proofs = BTreeMap::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue; // it was proven a while ago
        }
        let Some(challenge) = authorization.challenge(ChallengeType::Http01) else {
            return Err(RenewalFailure::Refused("it takes no proof by HTTP".into()));
        };
        let path = format!("{PATH}{}", challenge.token);
        proofs.insert(path, challenge.key_authorization().as_str().to_owned());
    }
    Ok(proofs)
}

/// Lets the server look, and waits for what it has seen.
async fn prove(order: &mut Order) -> Result<(), RenewalFailure> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Valid
            && let Some(mut challenge) = authorization.challenge(ChallengeType::Http01)
        {
            challenge.set_ready().await?;
        }
    }
    match order.poll_ready(&STEP).await? {
        OrderStatus::Ready | OrderStatus::Valid => Ok(()),
        status => Err(RenewalFailure::Refused(reason(order, status).await.into())),
    }
}

/// Why an order has become invalid.
async fn reason(order: &mut Order, status: OrderStatus) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            let errors = state.challenges.iter().filter_map(|it| it.error.as_ref());
            reasons.extend(errors.map(ToString::to_string));
        }
    }
    if reasons.is_empty() { format!("its status is {status:?}") } else { reasons.join("; ") }
}

fn proof(path: &str, proofs: &BTreeMap<String, String>) -> Answer {
    match proofs.get(path) {
        Some(proof) => answer(StatusCode::OK, "application/octet-stream", proof.clone()),
        None => text(StatusCode::NOT_FOUND, "There is nothing here.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_cannot_be_reached_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let setup = AcmeSetup {
            acme_domain: vec!["proxy.test".to_owned()],
            acme_folder: folder.path().to_owned(),
            acme_contact: None,
            acme_directory: "https://127.0.0.1:9/directory".to_owned(), // nothing listens there
            acme_ca: None,
            acme_listen: "127.0.0.1:0".parse().unwrap(),
        };
        let kept = Folder::new(&setup);
        let ordered = certificate(&setup, &kept);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failure = runtime.block_on(ordered).unwrap_err();
        assert!(matches!(failure, RenewalFailure::Acme(_)), "{failure}");
    }
}
