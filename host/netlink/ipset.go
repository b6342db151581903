package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IPSet is a set of the kernel's that rules of iptables match by its name.
type IPSet struct {
	Name string
	// Type is hash:ip, hash:ip,port, hash:ip,port,ip, hash:ip,port,net or bitmap:port.
	Type string
	V6   bool
}

// IPSetEntry is an element; which of its fields count is the set's type.
type IPSetEntry struct {
	Addr     netip.Addr
	Port     uint16
	Protocol uint8
	Second   netip.Addr   // of hash:ip,port,ip
	Net      netip.Prefix // of hash:ip,port,net
}

// maxElements is ten times the kernel's default.
const maxElements = 655360

func (s IPSet) kernel(e IPSetEntry) *netlink.IPSetEntry {
	out := &netlink.IPSetEntry{IP: e.Addr.AsSlice(), Replace: true} // what is there, or is not, is no error
	if s.Type != "hash:ip" {
		out.Port, out.Protocol = &e.Port, &e.Protocol
	}
	switch s.Type {
	case "hash:ip,port,ip":
		out.IP2 = e.Second.AsSlice()
	case "hash:ip,port,net":
		out.IP2, out.CIDR2 = e.Net.Addr().AsSlice(), uint8(e.Net.Bits())
	}
	return out
}

// Ensure makes the set if there is none of its name.
func (s IPSet) Ensure() error {
	o := netlink.IpsetCreateOptions{Replace: true, Family: unix.AF_INET}
	if s.V6 {
		o.Family = unix.AF_INET6
	}
	if s.Type == "bitmap:port" {
		o.PortTo = 65535
	} else {
		o.MaxElements = maxElements
	}
	if err := netlink.IpsetCreate(s.Name, s.Type, o); err != nil {
		return fmt.Errorf("make set %s of type %s: %w", s.Name, s.Type, err)
	}
	return nil
}

func (s IPSet) change(cmd int, e IPSetEntry) error {
	switch {
	case s.Type == "bitmap:port":
		return s.changePort(cmd, e.Port)
	case cmd == nl.IPSET_CMD_ADD:
		return netlink.IpsetAdd(s.Name, s.kernel(e))
	}
	return netlink.IpsetDel(s.Name, s.kernel(e))
}

// changePort enters a port, or takes it out. The library sends a protocol with it, which the kernel refuses.
func (s IPSet) changePort(cmd int, port uint16) error {
	req := nl.NewNetlinkRequest(cmd|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(cmd)&^unix.NLM_F_EXCL)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(s.Name)))
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|unix.NLA_F_NESTED, nil)
	data.AddRtAttr(nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, port))
	data.AddChild(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_LINENO | nl.NLA_F_NET_BYTEORDER})
	req.AddData(data)
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// Add enters an element; Delete takes it out.
func (s IPSet) Add(e IPSetEntry) error {
	if err := s.change(nl.IPSET_CMD_ADD, e); err != nil {
		return fmt.Errorf("add %v to set %s: %w", e, s.Name, err)
	}
	return nil
}

// Delete takes an element out. That it is not there is no error.
func (s IPSet) Delete(e IPSetEntry) error {
	if err := s.change(nl.IPSET_CMD_DEL, e); err != nil {
		return fmt.Errorf("delete %v from set %s: %w", e, s.Name, err)
	}
	return nil
}

// Entries are its elements.
func (s IPSet) Entries() ([]IPSetEntry, error) {
	r, err := dump(func() (*netlink.IPSetResult, error) { return netlink.IpsetList(s.Name) })
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", s.Name, err)
	}
	out := make([]IPSetEntry, 0, len(r.Entries))
	for _, e := range r.Entries {
		var is IPSetEntry
		is.Addr = addrOf(e.IP)
		if e.Port != nil {
			is.Port = *e.Port
		}
		if e.Protocol != nil {
			is.Protocol = *e.Protocol
		}
		if second := addrOf(e.IP2); s.Type == "hash:ip,port,net" && second.IsValid() {
			bits := int(e.CIDR2)
			if bits == 0 {
				bits = second.BitLen()
			}
			is.Net = netip.PrefixFrom(second, bits)
		} else {
			is.Second = second
		}
		out = append(out, is)
	}
	return out, nil
}

// Destroy takes a set away that no rule matches any more. That there is none is no error.
func (s IPSet) Destroy() error {
	err := netlink.IpsetDestroy(s.Name)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("take set %s away: %w", s.Name, err)
	}
	return nil
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
