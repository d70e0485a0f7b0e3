// This program is a proxy for TCP on quic-go, which knows CONNECT (RFC 9114 section 4.4) only. It
// answers other requests with the status that it is given.
package main

import (
	"crypto/tls"
	"flag"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const connectError = quic.StreamErrorCode(http3.ErrCodeConnectError)

func main() {
	cert := flag.String("cert", "", "certificate chain in PEM")
	key := flag.String("key", "", "private key in PEM")
	status := flag.Int("status", http.StatusNotImplemented, "answer to other requests")
	flag.Parse()

	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := http3.Server{
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			log.Printf("%s %s %s", r.Method, r.Proto, r.Host)
			if r.Method != http.MethodConnect || r.Proto != "HTTP/3.0" {
				w.WriteHeader(*status)
				return
			}
			connect(w, r)
		}),
	}
	log.Printf("listening on %s", socket.LocalAddr())
	log.Fatal(server.Serve(socket))
}

// connect opens a TCP connection and passes bytes on in both directions.
func connect(w http.ResponseWriter, r *http.Request) {
	target, err := net.Dial("tcp", r.Host)
	if err != nil {
		log.Print(err)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer target.Close()
	w.WriteHeader(http.StatusOK)
	stream, err := w.(http3.HTTPStreamer).HTTPStream()
	if err != nil {
		log.Print(err)
		return
	}
	sent := make(chan int64)
	go func() {
		sent <- toTarget(target.(*net.TCPConn), stream)
	}()
	received, err := io.Copy(stream, target)
	if err != nil {
		log.Printf("from the target: %v", err)
		stream.CancelWrite(connectError)
		stream.CancelRead(connectError)
	} else {
		stream.Close()
	}
	log.Printf("closed: %d bytes to the target, %d from it", <-sent, received)
}

// toTarget passes bytes on to the target, and how they end: a FIN as a FIN, a reset as an RST.
func toTarget(target *net.TCPConn, stream *http3.Stream) int64 {
	length, err := io.Copy(target, stream)
	if err != nil {
		log.Printf("from the client: %v", err)
		target.SetLinger(0)
		target.Close()
	} else {
		target.CloseWrite()
	}
	return length
}
