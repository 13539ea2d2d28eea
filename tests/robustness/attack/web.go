package attack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
)

// http1 is HTTP/1.1 in a TLS handshake.
const http1 = "http/1.1"

// post begins a request by HTTP/1.1, whose body is to have a length.
func (c *crowd) post(conn net.Conn, path, contentType string, length int, more ...string) bool {
	header := append([]string{"POST " + path + " HTTP/1.1", "Host: " + c.target.Address, "Content-Type: " + contentType,
		fmt.Sprintf("Content-Length: %d", length)}, more...)
	_, err := io.WriteString(conn, strings.Join(header, "\r\n")+"\r\n\r\n")
	c.note(func(o *Outcome) { o.Calls++ })
	return err == nil
}

// body sends bytes and says whether the other side took them.
func (c *crowd) body(conn net.Conn, content []byte) bool {
	n, err := conn.Write(content)
	c.note(func(o *Outcome) { o.Sent += int64(n) })
	return err == nil
}

var (
	trailer = regexp.MustCompile(`grpc-status: ?(\d+)`)
	names   = func() map[string]codes.Code {
		all := map[string]codes.Code{}
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			all[strings.ToLower(code.String())] = code
		}
		return all
	}()
)

// answer reads an answer and notes its status.
func (c *crowd) answer(conn net.Conn) {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		c.ended("connection closed")
		return
	}
	const enough = 1 << 20
	content, _ := io.ReadAll(io.LimitReader(response.Body, enough))
	_ = response.Body.Close()
	c.note(func(o *Outcome) { o.Received += int64(len(content)) })
	if number := response.Header.Get("grpc-status"); number != "" {
		c.told(codeOf(number))
		return
	}
	if found := trailer.FindSubmatch(bytes.ToLower(content)); found != nil {
		c.told(codeOf(string(found[1])))
		return
	}
	var failure struct{ Code string }
	if json.Unmarshal(content, &failure) == nil && failure.Code != "" {
		c.told(names[strings.ReplaceAll(failure.Code, "_", "")].String())
		return
	}
	if response.StatusCode == http.StatusOK {
		c.told(codes.OK.String())
		return
	}
	c.ended("HTTP " + response.Status)
}
