import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;
import tech.kwik.core.StreamClosedException;
import tech.kwik.flupke.Http3Client;
import tech.kwik.flupke.Http3ClientBuilder;
import tech.kwik.flupke.core.CapsuleProtocolStream;
import tech.kwik.flupke.core.GenericCapsule;
import tech.kwik.flupke.impl.CapsuleProtocolStreamImpl;

/**
 * A client on flupke and kwik.
 *
 * <p>{@code Peer get CA URL OUTPUT} fetches a URL. {@code Peer echo CA PROXY TARGET} sends payloads in DATAGRAM
 * capsules through a CONNECT-UDP proxy to a target that sends them back.
 */
final class Peer {
    private static final long DATAGRAM = 0; // capsule type (RFC 9297 §3.5)
    private static final int LARGEST_PAYLOAD = 9000; // bytes
    private static final int STEP = 250; // bytes from one size to the next
    private static final int TRIES = 3; // connections

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "get" -> get(client(words[1]), words[2], Path.of(words[3]));
            case "echo" -> echoAgain(words[1], words[2], words[3]);
            default -> throw new IllegalArgumentException(words[0]);
        }
        System.exit(0); // kwik's threads go on
    }

    private static void get(Http3Client client, String url, Path output) throws IOException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url)).build();
        HttpResponse<Path> response = client.send(request, HttpResponse.BodyHandlers.ofFile(output));
        if (response.statusCode() != 200) {
            throw new IOException("status " + response.statusCode());
        }
    }

    private static Http3Client client(String ca) throws IOException, GeneralSecurityException {
        Http3ClientBuilder builder = Http3Client.newBuilder().trustManager(trust(ca));
        return (Http3Client) builder.build();
    }

    /**
     * Of some 20 connections, kwik 0.10 stops one in the middle of a write: what it has sent is acknowledged, there is
     * credit, and nothing more comes until the connection times out. Then there is another one.
     */
    private static void echoAgain(String ca, String proxy, String target) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                echo(client(ca), proxy, target);
                return;
            } catch (StreamClosedException stopped) {
                if (tries == TRIES) {
                    throw stopped;
                }
                System.out.println("kwik stopped: " + stopped);
            }
        }
    }

    private static void echo(Http3Client client, String proxy, String target) throws Exception {
        String place = target.replace(':', '/');
        URI uri = URI.create(proxy + ".well-known/masque/udp/" + place + "/");
        HttpRequest request = HttpRequest.newBuilder(uri).header("capsule-protocol", "?1").build();
        CapsuleProtocolStream stream =
                new CapsuleProtocolStreamImpl(client.sendExtendedConnect(request, "connect-udp", "https"));
        int count = 0;
        for (int size = 1; size <= LARGEST_PAYLOAD; size += STEP) {
            byte[] datagram = new byte[1 + size]; // the first byte is the Context ID, which is 0
            Arrays.fill(datagram, 1, datagram.length, (byte) size);
            stream.send(new GenericCapsule(DATAGRAM, datagram));
            GenericCapsule answer = (GenericCapsule) stream.receive();
            if (answer.getType() != DATAGRAM || !Arrays.equals(answer.getData(), datagram)) {
                throw new IOException("a payload of " + size + " bytes came back as " + answer);
            }
            count++;
        }
        System.out.println("echoed: " + count);
    }

    private static X509TrustManager trust(String ca) throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (InputStream pem = Files.newInputStream(Path.of(ca))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory factory =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return (X509TrustManager) factory.getTrustManagers()[0];
    }
}
