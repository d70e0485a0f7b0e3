// A forward for TCP and UDP through the Hysteria 2 protocol, on the library sagernet/sing-quic. It is an
// independent implementation of that protocol, and not the program of apernet.
//
//	sing-hysteria2 serve -listen ADDRESS -cert FILE -key FILE [-mbps N]
//	sing-hysteria2 connect -listen ADDRESS -server ADDRESS -dest ADDRESS -ca FILE [-mbps N]
//	sing-hysteria2 connect-udp -server ADDRESS -ca FILE [-connections N] LISTEN=TARGET ...
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/sagernet/sing-quic/hysteria2"
	"github.com/sagernet/sing/common/bufio"
	"github.com/sagernet/sing/common/logger"
	M "github.com/sagernet/sing/common/metadata"
	N "github.com/sagernet/sing/common/network"
	aTLS "github.com/sagernet/sing/common/tls"
)

// A UDP session without packets ends after this time.
const udpTimeout = 5 * time.Minute

const password = "of the benchmark, which listens in its own namespaces only"

// config makes crypto/tls what the library wants.
type config struct{ *tls.Config }

func (c config) ServerName() string                      { return c.Config.ServerName }
func (c config) SetServerName(name string)               { c.Config.ServerName = name }
func (c config) NextProtos() []string                    { return c.Config.NextProtos }
func (c config) SetNextProtos(protocols []string)        { c.Config.NextProtos = protocols }
func (c config) HandshakeTimeout() time.Duration         { return 15 * time.Second }
func (c config) SetHandshakeTimeout(time.Duration)       {}
func (c config) STDConfig() (*tls.Config, error)         { return c.Config, nil }
func (c config) Client(conn net.Conn) (aTLS.Conn, error) { return tls.Client(conn, c.Config), nil }
func (c config) Server(conn net.Conn) (aTLS.Conn, error) { return tls.Server(conn, c.Config), nil }
func (c config) Clone() aTLS.Config                      { return config{c.Config.Clone()} }
func (c config) Start() error                            { return nil }
func (c config) Close() error                            { return nil }

// handler connects each stream to its destination.
type handler struct{}

func (handler) NewConnectionEx(ctx context.Context, conn net.Conn, _, destination M.Socksaddr, onClose N.CloseHandlerFunc) {
	target, err := net.Dial("tcp", destination.String())
	if err != nil {
		N.ReportHandshakeFailure(conn, err)
		conn.Close()
		return
	}
	N.ReportHandshakeSuccess(conn)
	err = bufio.CopyConn(ctx, conn, target)
	if onClose != nil {
		onClose(err)
	}
}

func main() {
	role := os.Args[1]
	flags := flag.NewFlagSet(role, flag.ExitOnError)
	listen := flags.String("listen", "", "ADDRESS:PORT to listen on")
	dest := flags.String("dest", "", "ADDRESS:PORT of the service (serve: ignored)")
	server := flags.String("server", "", "ADDRESS:PORT of the server (connect)")
	cert := flags.String("cert", "", "certificate (serve)")
	key := flags.String("key", "", "its private key (serve)")
	ca := flags.String("ca", "", "CA (connect)")
	mbps := flags.Uint64("mbps", 0, "rate in both directions for its Brutal controller; 0: BBR")
	connections := flags.Int("connections", 1, "connections to the server (connect-udp)")
	flags.Parse(os.Args[2:])
	bytesPerSecond := *mbps * 1e6 / 8
	if role == "serve" {
		serve(*listen, *cert, *key, bytesPerSecond)
		return
	}
	var clients []*hysteria2.Client
	for range *connections {
		clients = append(clients, newClient(*server, *ca, bytesPerSecond))
	}
	if role == "connect-udp" {
		connectUDP(clients, flags.Args())
	} else {
		connect(*listen, *dest, clients[0])
	}
}

func serve(listen, cert, key string, bytesPerSecond uint64) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	check(err)
	service, err := hysteria2.NewService[int](hysteria2.ServiceOptions{
		Context:    context.Background(),
		Logger:     logger.NOP(),
		SendBPS:    bytesPerSecond,
		ReceiveBPS: bytesPerSecond,
		TLSConfig:  config{&tls.Config{Certificates: []tls.Certificate{pair}}},
		UDPTimeout: udpTimeout,
		Handler:    handler{},
	})
	check(err)
	service.UpdateUsers([]int{1}, []string{password})
	socket, err := net.ListenPacket("udp", listen)
	check(err)
	check(service.Start(socket))
	fmt.Fprintf(os.Stderr, "listening on %s\n", socket.LocalAddr())
	select {}
}

func newClient(server, ca string, bytesPerSecond uint64) *hysteria2.Client {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	address := M.ParseSocksaddr(server)
	client, err := hysteria2.NewClient(hysteria2.ClientOptions{
		Context:       context.Background(),
		Dialer:        N.SystemDialer,
		Logger:        logger.NOP(),
		ServerAddress: address,
		SendBPS:       bytesPerSecond,
		ReceiveBPS:    bytesPerSecond,
		Password:      password,
		TLSConfig:     config{&tls.Config{RootCAs: roots, ServerName: address.AddrString()}},
	})
	check(err)
	return client
}

func connect(listen, dest string, client *hysteria2.Client) {
	listener, err := net.Listen("tcp", listen)
	check(err)
	fmt.Fprintln(os.Stderr, "listening")
	for {
		conn, err := listener.Accept()
		check(err)
		go func() {
			defer conn.Close()
			tunnel, err := client.DialConn(context.Background(), M.ParseSocksaddr(dest))
			if err != nil {
				log.Print(err)
				return
			}
			bufio.CopyConn(context.Background(), conn, tunnel)
		}()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
