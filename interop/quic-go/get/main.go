// This program fetches a URL over HTTP/3 with quic-go and its default settings, or sends a file to
// it with POST. It trusts the CA of SSL_CERT_FILE.
package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	output := flag.String("o", "", "file for the answer")
	upload := flag.String("upload", "", "file to send")
	flag.Parse()
	if err := run(flag.Arg(0), *output, *upload); err != nil {
		log.Fatal(err)
	}
}

func run(url, output, upload string) error {
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
	transport := &http3.Transport{}
	defer transport.Close()
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
	if _, err := io.Copy(file, response.Body); err != nil {
		return err
	}
	return file.Close()
}
