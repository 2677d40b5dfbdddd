// Follows a real server and prints what becomes of the connection, one JSON line a change; says what it
// reads on its input ("want", "leave", "retry") to the connection. Arguments: address, token.
import { createInterface } from 'node:readline';

import { Connection, RequestError } from '../lib/sidebar/connection.js';
import { ServerDocument } from '../lib/sidebar/serverDocument.js';

const [address, token] = process.argv.slice(2);
const told = new ServerDocument();
const say = what => console.log(JSON.stringify(what));
const transport = {
  async request(path) {
    const headers = { Authorization: `token ${token}` };
    const response = await fetch(`${address}jupyter-mgpu/${path}`, { headers }).catch(error => {
      throw new RequestError(0, String(error));
    });
    if (!response.ok) {
      throw new RequestError(response.status, response.statusText);
    }
    return response.json();
  },
  openSocket: () =>
    new WebSocket(`${address.replace('http', 'ws')}jupyter-mgpu/stream?token=${token}`)
};
const connection = new Connection(
  transport,
  frame => {
    told.apply(frame);
    say({ frame: frame.type, hostname: told.host?.hostname });
  },
  link => say({ link: link.kind })
);
const acts = {
  want: () => connection.want(true, 0.5),
  leave: () => connection.want(false, 0.5),
  retry: () => connection.retry()
};
createInterface({ input: process.stdin })
  .on('line', line => acts[line]())
  .on('close', () => connection.dispose());
