package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/sagernet/sing-quic/hysteria2"
	"github.com/sagernet/sing/common/bufio"
	M "github.com/sagernet/sing/common/metadata"
	N "github.com/sagernet/sing/common/network"
)

// No packet may be lost because a socket is full.
const socketBuffer = 4 << 20

// NewPacketConnectionEx carries a UDP session between a client and its first destination.
func (handler) NewPacketConnectionEx(ctx context.Context, conn N.PacketConn, _, destination M.Socksaddr, onClose N.CloseHandlerFunc) {
	target, err := net.Dial("udp", destination.String())
	if err != nil {
		conn.Close()
		return
	}
	withBuffers(target.(*net.UDPConn))
	err = bufio.CopyPacketConn(ctx, conn, bufio.NewUnbindPacketConn(target))
	if onClose != nil {
		onClose(err)
	}
}

// connectUDP has a local port for each LISTEN=TARGET. Flows are given to the clients in turn.
func connectUDP(clients []*hysteria2.Client, listeners []string) {
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
		fmt.Fprintf(os.Stderr, "listening on %s\n", socket.LocalAddr())
		go carry(socket, M.ParseSocksaddr(target), clients)
	}
	select {}
}

func carry(socket *net.UDPConn, target M.Socksaddr, clients []*hysteria2.Client) {
	flows := map[netip.AddrPort]net.PacketConn{}
	packet := make([]byte, 2048)
	for {
		length, source, err := socket.ReadFromUDPAddrPort(packet)
		if err != nil {
			continue
		}
		flow := flows[source]
		if flow == nil {
			flow, err = clients[len(flows)%len(clients)].ListenPacket(context.Background())
			check(err)
			flows[source] = flow
			go answer(socket, source, flow)
		}
		_, _ = flow.WriteTo(packet[:length], target) // what does not fit is lost
	}
}

func answer(socket *net.UDPConn, source netip.AddrPort, flow net.PacketConn) {
	packet := make([]byte, 2048)
	for {
		length, _, err := flow.ReadFrom(packet)
		if err != nil {
			return
		}
		_, _ = socket.WriteToUDPAddrPort(packet[:length], source)
	}
}

func withBuffers(socket *net.UDPConn) {
	check(socket.SetReadBuffer(socketBuffer))
	check(socket.SetWriteBuffer(socketBuffer))
}
