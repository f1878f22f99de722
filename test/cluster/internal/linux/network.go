package linux

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// AddBridge makes a bridge with an address in the network namespace of pid.
func AddBridge(pid int, name string, address netip.Prefix) error {
	h, err := handle(pid)
	if err != nil {
		return err
	}
	defer h.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := h.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s: %w", name, err)
	}
	return setAddress(h, name, address)
}

// AddPort makes a pair of interfaces between the bridge in the network
// namespace of pid and that of the process peer, where it is called eth0.
func AddPort(pid int, bridge, port string, peer int, address netip.Prefix) error {
	h, err := handle(pid)
	if err != nil {
		return err
	}
	defer h.Close()
	master, err := h.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: port, MasterIndex: master.Attrs().Index},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsPid(peer),
	}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("add interface %s: %w", port, err)
	}
	link, err := h.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", port, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set interface %s up: %w", port, err)
	}
	inside, err := handle(peer)
	if err != nil {
		return err
	}
	defer inside.Close()
	return setAddress(inside, "eth0", address)
}

// AddRoute adds or replaces a route in the network namespace of pid. The zero
// prefix of the family is the default route.
func AddRoute(pid int, to netip.Prefix, via netip.Addr) error {
	h, err := handle(pid)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteReplace(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", to, via, err)
	}
	return nil
}

func setAddress(h *netlink.Handle, name string, address netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, address, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set interface %s up: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func handle(pid int) (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, fmt.Errorf("netlink in the network namespace of process %d: %w", pid, err)
	}
	return h, nil
}
