// This program serves a folder over HTTP/3 with quic-go and its default settings. Packets have 1280
// bytes at first, even if the client accepts only smaller ones, and grow by path MTU discovery. The
// answer to a POST is the SHA-256 of the received body.
//
// With -hybrid it knows no key exchange but X25519MLKEM768. With -ech NAME it takes an Encrypted
// ClientHello under this public name, and prints the configurations that belong in HTTPS records.
package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
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
	hybrid := flag.Bool("hybrid", false, "know no key exchange but X25519MLKEM768")
	ech := flag.String("ech", "", "public name for an Encrypted ClientHello")
	replaced := flag.Bool("ech-replaced", false, "print configurations that the server has replaced by others")
	off := flag.Bool("ech-off", false, "print configurations, and take none")
	flag.Parse()

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	if *hybrid {
		config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
	}
	if *ech != "" {
		printed, key := newECHKey(*ech, 1)
		if *replaced {
			_, key = newECHKey(*ech, 2)
		}
		if !*off {
			config.EncryptedClientHelloKeys = []tls.EncryptedClientHelloKey{key}
		}
		log.Printf("ech %s", printed)
	}
	files := http.FileServer(http.Dir(*root))
	server := http3.Server{
		QUICConfig: &quic.Config{InitialPacketSize: uint16(*initial)},
		TLSConfig:  http3.ConfigureTLSConfig(config),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			log.Printf("%s %s from %s", r.Method, r.URL.Path, r.RemoteAddr)
			if *ech != "" {
				log.Printf("name %s, encrypted %t", r.TLS.ServerName, r.TLS.ECHAccepted)
			}
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

// newECHKey returns an ECHConfigList (RFC 9849, section 4) in base64 with one configuration, and its key.
func newECHKey(publicName string, id uint8) (string, tls.EncryptedClientHelloKey) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	withLen := func(b []byte) []byte {
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	}
	contents := append([]byte{id}, 0x00, 0x20) // DHKEM(X25519, HKDF-SHA256)
	contents = append(contents, withLen(key.PublicKey().Bytes())...)
	contents = append(contents, withLen([]byte{0, 1, 0, 1})...) // HKDF-SHA256, AES-128-GCM
	contents = append(contents, 64, uint8(len(publicName)))
	contents = append(contents, publicName...)
	contents = append(contents, 0, 0) // no extensions
	config := append([]byte{0xfe, 0x0d}, withLen(contents)...)
	list := base64.StdEncoding.EncodeToString(withLen(config))
	return list, tls.EncryptedClientHelloKey{Config: config, PrivateKey: key.Bytes(), SendAsRetry: true}
}
