// Asks a proxy for IP packets (CONNECT-IP, RFC 9484) and prints what it answers: connect-ip-go CA PROXY TOKEN
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"time"

	connectip "github.com/quic-go/connect-ip-go"
	"github.com/yosida95/uritemplate/v3"
)

func main() {
	pem, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The module knows no variables: its client asks for all targets and protocols (RFC 9484 section 3).
	template := uritemplate.MustNew("https://" + os.Args[2] + "/.well-known/masque/ip/*/*/")
	request, err := connectip.NewRequest(ctx, template)
	if err != nil {
		log.Fatal(err)
	}
	request.Header().Set("Authorization", "Bearer "+os.Args[3])
	transport := connectip.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{"h3"}}}
	_, response, err := transport.Dial(request)
	if response == nil {
		log.Fatal(err)
	}
	fmt.Printf("status %d, proxy-status %q\n", response.StatusCode, response.Header.Get("Proxy-Status"))
}
