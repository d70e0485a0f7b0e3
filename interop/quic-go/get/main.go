// This program fetches a URL over HTTP/3 with quic-go and its default settings, or sends a file to
// it with POST. It trusts the CA of SSL_CERT_FILE. On request, its packets keep the size of 1200
// bytes, its connection ID is empty, it moves to another local port in the middle of a download, or it
// knows no key exchange but X25519MLKEM768.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	migrateAfter = 1_000_000        // bytes
	probeTimeout = 10 * time.Second // until the server has answered on a new path
)

func main() {
	output := flag.String("o", "", "file for the answer")
	upload := flag.String("upload", "", "file to send")
	small := flag.Bool("small", false, "send packets of 1200 bytes at most")
	emptyID := flag.Bool("empty-id", false, "have an empty connection ID")
	migrates := flag.Bool("migrate", false, "move to another local port after 1 MB of the answer")
	hybrid := flag.Bool("hybrid", false, "know no key exchange but X25519MLKEM768")
	flag.Parse()
	config := &tls.Config{}
	if *hybrid {
		config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
	}
	if err := run(flag.Arg(0), *output, *upload, config, *small, *emptyID, *migrates); err != nil {
		log.Fatal(err)
	}
}

func run(url, output, upload string, config *tls.Config, small, emptyID, migrates bool) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if upload != "" {
		file, err := os.Open(upload)
		if err != nil {
			return err
		}
		request.Method, request.Body = http.MethodPost, file
	}
	transport := &http3.Transport{TLSClientConfig: config}
	if small {
		transport.QUICConfig = &quic.Config{InitialPacketSize: 1200, DisablePathMTUDiscovery: true}
	}
	defer transport.Close()
	var connection *quic.Conn
	if emptyID || migrates {
		transport.Dial = func(ctx context.Context, address string, tls *tls.Config, config *quic.Config) (*quic.Conn, error) {
			dialled, err := dial(ctx, address, tls, config, emptyID)
			connection = dialled
			return dialled, err
		}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	log.Printf("%s %s", response.Proto, response.Status)
	file, err := os.Create(output)
	if err != nil {
		return err
	}
	if migrates {
		if _, err := io.CopyN(file, response.Body, migrateAfter); err != nil {
			return err
		}
		if err := migrate(connection); err != nil {
			return err
		}
	}
	if _, err := io.Copy(file, response.Body); err != nil {
		return err
	}
	return file.Close()
}

// dial connects from a new socket.
func dial(ctx context.Context, address string, tls *tls.Config, config *quic.Config, emptyID bool) (*quic.Conn, error) {
	remote, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	socket, err := localSocket()
	if err != nil {
		return nil, err
	}
	if emptyID {
		return quic.DialEarly(ctx, socket, remote, tls, config) // only this function lets the ID be empty
	}
	return (&quic.Transport{Conn: socket}).DialEarly(ctx, remote, tls, config)
}

// migrate moves a connection to another socket, as in RFC 9000, section 9.
func migrate(connection *quic.Conn) error {
	socket, err := localSocket()
	if err != nil {
		return err
	}
	path, err := connection.AddPath(&quic.Transport{Conn: socket})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		return err
	}
	log.Printf("moves from %s to %s", connection.LocalAddr(), socket.LocalAddr())
	return path.Switch()
}

func localSocket() (*net.UDPConn, error) {
	return net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
}
