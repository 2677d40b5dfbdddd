import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { type ITransport, RequestError } from './connection.js';

const ADDRESS = 'jupyter-mgpu';

/** Reach the server part of this page's Jupyter server. */
export function transportTo(settings: ServerConnection.ISettings): ITransport {
  return {
    async request(path: string, body?: object): Promise<unknown> {
      const url = URLExt.join(settings.baseUrl, ADDRESS, path);
      const init = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
      let response: Response;
      try {
        response = await ServerConnection.makeRequest(url, init, settings);
      } catch (error) {
        throw new RequestError(0, String(error));
      }
      const answer: unknown = await response.json().catch(() => null);
      if (!response.ok) {
        const words = (answer as { message?: string } | null)?.message;
        throw new RequestError(response.status, words ?? response.statusText);
      }
      return answer;
    },
    openSocket(): WebSocket {
      const url = URLExt.join(settings.wsUrl, ADDRESS, 'stream');
      const hasToken = settings.appendToken && settings.token !== '';
      const query = hasToken ? `?token=${encodeURIComponent(settings.token)}` : '';
      return new settings.WebSocket(url + query);
    }
  };
}
