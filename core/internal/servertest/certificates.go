package servertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Certificates are files in PEM: an authority, and what it signed.
type Certificates struct {
	CA                    string
	ServerCert, ServerKey string // of 127.0.0.1 and localhost
	ClientCert, ClientKey string
	authority             *x509.Certificate
	key                   *ecdsa.PrivateKey
	t                     testing.TB
	dir                   string
	serial                int64
}

// NewCertificates makes a new authority, and the certificates of a server and a client whose common name is client.
func NewCertificates(t testing.TB, client string) *Certificates {
	t.Helper()
	c := &Certificates{t: t, dir: t.TempDir()}
	var err error
	c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := c.template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &c.key.PublicKey, c.key)
	require.NoError(t, err)
	c.authority, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	c.CA = c.write("ca.pem", "CERTIFICATE", der)
	c.ServerCert, c.ServerKey = c.sign("server", x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	c.ClientCert, c.ClientKey = c.sign(client, x509.ExtKeyUsageClientAuth)
	return c
}

func (c *Certificates) template(name string) *x509.Certificate {
	c.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(c.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
}

// Expired makes a certificate and its key that were good until an hour ago.
func (c *Certificates) Expired(name string) [2]string {
	cert, key := c.signed(name, time.Now().Add(-time.Hour), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	return [2]string{cert, key}
}

func (c *Certificates) sign(name string, usage ...x509.ExtKeyUsage) (cert, key string) {
	return c.signed(name, time.Now().Add(24*time.Hour), usage...)
}

func (c *Certificates) signed(name string, until time.Time, usage ...x509.ExtKeyUsage) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	template := c.template(name)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, usage
	template.NotBefore, template.NotAfter = until.Add(-48*time.Hour), until
	der, err := x509.CreateCertificate(rand.Reader, template, c.authority, &private.PublicKey, c.key)
	require.NoError(c.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(c.t, err)
	return c.write(name+".pem", "CERTIFICATE", der), c.write(name+"-key.pem", "PRIVATE KEY", pkcs8)
}

func (c *Certificates) write(name, kind string, der []byte) string {
	path := filepath.Join(c.dir, name)
	require.NoError(c.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// Text is what a file has.
func (c *Certificates) Text(path string) string {
	text, err := os.ReadFile(path)
	require.NoError(c.t, err)
	return string(text)
}
