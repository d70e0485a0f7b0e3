// This program serves a folder over HTTP/3 with quic-go and its default settings. Packets have 1280
// bytes at first, even if the client accepts only smaller ones, and grow by path MTU discovery. The
// answer to a POST is the SHA-256 of the received body.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

func main() {
	root := flag.String("root", ".", "folder to serve")
	cert := flag.String("cert", "", "certificate chain in PEM")
	key := flag.String("key", "", "private key in PEM")
	listen := flag.String("listen", "127.0.0.1:0", "address and port")
	initial := flag.Uint("initial", 1280, "size of packets at the start")
	flag.Parse()

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	files := http.FileServer(http.Dir(*root))
	server := http3.Server{
		QUICConfig: &quic.Config{InitialPacketSize: uint16(*initial)},
		TLSConfig:  http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
			if r.Method != http.MethodPost {
				files.ServeHTTP(w, r)
				return
			}
			hash := sha256.New()
			if _, err := io.Copy(hash, r.Body); err != nil {
				log.Printf("upload: %v", err)
				return
			}
			fmt.Fprintf(w, "%x\n", hash.Sum(nil))
		}),
	}
	log.Printf("listening on %s", socket.LocalAddr())
	log.Fatal(server.Serve(socket))
}
