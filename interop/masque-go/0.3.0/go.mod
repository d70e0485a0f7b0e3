module interop/masque-go

go 1.25.0

tool (
	github.com/quic-go/masque-go/cmd/client
	github.com/quic-go/masque-go/cmd/proxy
)

require (
	github.com/dunglas/httpsfv v1.0.2 // indirect
	github.com/quic-go/masque-go v0.3.0 // indirect
	github.com/quic-go/qpack v0.5.1 // indirect
	github.com/quic-go/quic-go v0.53.0 // indirect
	github.com/yosida95/uritemplate/v3 v3.0.2 // indirect
	go.uber.org/mock v0.5.0 // indirect
	golang.org/x/crypto v0.26.0 // indirect
	golang.org/x/mod v0.18.0 // indirect
	golang.org/x/net v0.28.0 // indirect
	golang.org/x/sync v0.8.0 // indirect
	golang.org/x/sys v0.23.0 // indirect
	golang.org/x/text v0.17.0 // indirect
	golang.org/x/tools v0.22.0 // indirect
)
