# The shortest check-in that Python's own library allows: the same request as the agent's, the answer parsed.
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", sys.argv[2], sys.argv[3], {"Content-Type": "application/json"})
print(json.load(connection.getresponse())["desired_sha"])
