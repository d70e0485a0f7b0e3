// This program makes a tunnel for UDP packets of masque-go, which is a library: a proxy, and a client that carries the
// packets of local programs.
//
//	masque-go proxy LISTEN CERT KEY
//	masque-go client PROXY CA LISTEN=TARGET ...
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/masque-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
)

// No packet may be lost because a socket is full. (quic-go itself asks for more.)
const socketBuffer = 4 << 20

const path = "/.well-known/masque/udp/"

var quicConfig = &quic.Config{
	EnableDatagrams:    true,
	InitialPacketSize:  1350, // as in masque-go's own client
	KeepAlivePeriod:    5 * time.Second,
	MaxIncomingStreams: 2000,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("proxy or client?")
	}
	arguments := os.Args[2:]
	switch {
	case os.Args[1] == "proxy" && len(arguments) == 3:
		proxy(arguments[0], arguments[1], arguments[2])
	case os.Args[1] == "client" && len(arguments) > 2:
		client(arguments[0], arguments[1], arguments[2:])
	default:
		log.Fatal("proxy or client?")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func withBuffers(socket *net.UDPConn) *net.UDPConn {
	check(socket.SetReadBuffer(socketBuffer))
	check(socket.SetWriteBuffer(socketBuffer))
	return socket
}

func template(authority string) *uritemplate.Template {
	return uritemplate.MustNew("https://" + authority + path + "{target_host}/{target_port}/")
}

func proxy(listen, cert, key string) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	socket, err := net.ListenPacket("udp", listen)
	check(err)
	withBuffers(socket.(*net.UDPConn))
	requests := template(socket.LocalAddr().String())
	masqueProxy := masque.Proxy{}
	mux := http.NewServeMux()
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		request, err := masque.ParseProxyRequest(r, requests)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		target, err := net.Dial("udp", request.Target)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		// It closes the socket.
		_ = masqueProxy.ProxyConnectedSocket(w, request, withBuffers(target.(*net.UDPConn)))
	})
	server := http3.Server{
		TLSConfig:       http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		QUICConfig:      quicConfig,
		EnableDatagrams: true,
		Handler:         mux,
	}
	log.Printf("listening on %s", socket.LocalAddr())
	check(server.Serve(socket))
}

// A tunnel is one connection to a proxy.
type tunnel struct {
	connection *masque.ClientConn
	template   *uritemplate.Template
}

func connect(authority, ca string) tunnel {
	text, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		log.Fatalf("%s has no certificate", ca)
	}
	config := &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{http3.NextProtoH3}}
	connection, err := quic.DialAddr(context.Background(), authority, config, quicConfig)
	check(err)
	client, err := (&masque.Transport{}).NewClientConn(connection)
	check(err)
	return tunnel{client, template(authority)}
}

func (t tunnel) open(target string) (*masque.Conn, error) {
	request, err := masque.NewRequest(context.Background(), t.template, target)
	if err != nil {
		return nil, err
	}
	flow, _, err := t.connection.Dial(request)
	return flow, err
}

func client(authority, ca string, listeners []string) {
	tunnel := connect(authority, ca)
	for _, words := range listeners {
		listen, target, found := strings.Cut(words, "=")
		if !found {
			log.Fatalf("%s has no target", words)
		}
		address, err := net.ResolveUDPAddr("udp", listen)
		check(err)
		socket, err := net.ListenUDP("udp", address)
		check(err)
		withBuffers(socket)
		log.Printf("listening on %s", socket.LocalAddr())
		go tunnel.carry(socket, target)
	}
	select {}
}

// A flow exists from the first packet of a local program on, and carries packets once the proxy has granted it.
type flow struct {
	mutex   sync.Mutex
	granted *masque.Conn
	early   [][]byte
}

// How many packets wait for the grant.
const earlyMax = 16

func (t tunnel) carry(socket *net.UDPConn, target string) {
	flows := map[netip.AddrPort]*flow{}
	packet := make([]byte, 2048)
	for {
		length, source, err := socket.ReadFromUDPAddrPort(packet)
		if err != nil {
			continue
		}
		one := flows[source]
		if one == nil {
			one = &flow{}
			flows[source] = one
			go t.grant(one, socket, source, target)
		}
		one.send(packet[:length])
	}
}

func (f *flow) send(payload []byte) {
	f.mutex.Lock()
	granted := f.granted
	if granted == nil && len(f.early) < earlyMax {
		f.early = append(f.early, append([]byte{}, payload...))
	}
	f.mutex.Unlock()
	if granted != nil {
		_, _ = granted.WriteTo(payload, nil) // what does not fit is lost
	}
}

func (t tunnel) grant(one *flow, socket *net.UDPConn, source netip.AddrPort, target string) {
	granted, err := t.open(target)
	if err != nil {
		log.Print(err)
		return
	}
	one.mutex.Lock()
	one.granted = granted
	early := one.early
	one.early = nil
	one.mutex.Unlock()
	for _, payload := range early {
		_, _ = granted.WriteTo(payload, nil)
	}
	packet := make([]byte, 2048)
	for {
		length, _, err := granted.ReadFrom(packet)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				log.Print(err)
			}
			return
		}
		_, _ = socket.WriteToUDPAddrPort(packet[:length], source)
	}
}
