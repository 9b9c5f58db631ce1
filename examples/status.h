// status.h - look at a running program over HTTP: a page with live curves, JSON, Prometheus; read only
//
// DO THIS   Behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION: it looks into dtrain's rooms.
//              #define DTRAIN_IMPLEMENTATION
//              #include "dtrain.h"
//              #include "status.h"
//              dt_status *s = dt_status_open("8080", 0, "out", &err);      now http://127.0.0.1:8080 answers
//              dt_status_put(s, "{\"id\": \"mine\", \"state\": \"RUNNING\", \"step\": 500, \"steps\": 9000, \"loss\": 0.25}");
//              dt_status_close(s);
//           job.h, beside this file, does so for --status-port.
//
// What:    one thread answers GET and HEAD of
//          /             a page: progress, curves, numbers, ranks; it asks for the rest once a second
//          /status       what dt_status_put was given last
//          /metrics      its numbers, and those of the ranks, for Prometheus
//          /ranks        the whole valid JSON objects among folder/tasks/*.json, as a list: chief, worker 1, worker 2, …, ps 0, …
//          /metrics.csv  that file of the folder, of any size
//          /healthz      ok
// Owns:    a listener, a thread, and up to 64 connections, each with a deadline.
// Uses:    >>wire, >>base.   Used by: job.h, programs.
// Promise: training never waits for a client: dt_status_put copies, and no lock is held while anybody reads or writes. A slow,
//          silent or mad client holds one place of 64 for some seconds, and less when others wait. Nothing can be changed from
//          outside. On this machine's own address only requests to an IP address or to localhost are answered: a page from
//          elsewhere, whose name suddenly means 127.0.0.1 (DNS rebinding), reads nothing. At other addresses any name will do,
//          as Prometheus needs it; there everybody in the network may read.
#ifndef DTRAIN_STATUS_H
#define DTRAIN_STATUS_H

#ifndef DTRAIN_IMPLEMENTED
#error "status.h goes behind dtrain.h, in the file that defines DTRAIN_IMPLEMENTATION"
#endif

typedef struct dt_status dt_status;

// dt_status_open - listen, and answer from now on; GET /status says {} until there is something else.
//   where   "8080": this machine only; "HOST:PORT", "[v6]:PORT"; port 0: one that is free, see dt_status_url
//   offset  added to the port, unless that is 0: processes of one job take PORT, PORT + 1, …
//   folder  with metrics.csv and tasks/*.json, which may come later; NULL: none
// NULL on failure: DT_ERR_ARGUMENT for where, DT_ERR_IO if the port cannot be had, DT_ERR_MEMORY, DT_ERR_DISABLED.
DT_API dt_status *dt_status_open(const char *where, int offset, const char *folder, dt_error *err);

// dt_status_url - "http://127.0.0.1:8080", until it is closed; "" for NULL.
DT_API const char *dt_status_url(const dt_status *s);

// dt_status_put - what /status says from now on: one JSON object, which is copied. From any thread. NULL is fine for s.
DT_API void dt_status_put(dt_status *s, const char *json);

// dt_status_close - the last one put is still shown to pages that are open, for which it waits up to 1.5 s. NULL is fine.
DT_API void dt_status_close(dt_status *s);

#ifdef DTRAIN_NO_SOCKETS
DT_API dt_status *dt_status_open(const char *where, int offset, const char *folder, dt_error *err) {
    (void)where; (void)offset; (void)folder;
#ifdef DTRAIN_NO_THREADS
    dt__fail(err, DT_ERR_DISABLED, "--status-port: this build has DTRAIN_NO_THREADS: build without it");
#else
    dt__fail(err, DT_ERR_DISABLED, "--status-port: this build has DTRAIN_NO_SOCKETS: build without it");
#endif
    return NULL;
}
DT_API const char *dt_status_url(const dt_status *s) { (void)s; return ""; }
DT_API void dt_status_put(dt_status *s, const char *json) { (void)s; (void)json; }
DT_API void dt_status_close(dt_status *s) { (void)s; }
#else
#include <strings.h>

#ifndef DT_STATUS_PATIENCE
#define DT_STATUS_PATIENCE 5.0  // seconds: for a whole request, and twice that for an answer that does not move
#endif
#ifndef DT_STATUS_RANKS
#define DT_STATUS_RANKS 4096    // files of tasks/ that are read, each of at most 2,048 bytes
#endif

// ---- the page. All text gets into it by textContent; pieces of less than 4,096 bytes, which is what C99 has for a string.

static const char *const dt__status_page[] = {
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>"
    "<meta name=color-scheme content='light dark'><link rel=icon href='data:,'><title>dtrain</title><style>"
    ":root{color-scheme:light dark;--bg:#f4f6f9;--card:#fff;--ink:#1b2230;--dim:#667085;--line:#e4e8ee;--a:#2563eb;--b:#e8590c;--good:#15803d;--bad:#c92a2a}"
    "@media(prefers-color-scheme:dark){:root{--bg:#11141a;--card:#1a1f28;--ink:#e7eaf0;--dim:#95a1b5;--line:#2b323e;--a:#6ea8fe;--b:#ff9f5a;--good:#4ade80;--bad:#ff7b72}}"
    "*{box-sizing:border-box}body{margin:0 auto;padding:24px;max-width:1240px;font:14px/1.45 system-ui,'Segoe UI',Roboto,sans-serif;background:var(--bg);color:var(--ink)}"
    "header{display:flex;gap:12px;align-items:center;flex-wrap:wrap;margin-bottom:14px}h1{font-size:20px;margin:0;overflow-wrap:anywhere}"
    "#state{font-size:12px;font-weight:600;padding:2px 10px;border-radius:99px;color:var(--card);background:var(--dim)}"
    "#state.RUNNING{background:var(--a)}#state.SUCCEEDED{background:var(--good)}#state.FAILED,#state.CANCELLED{background:var(--bad)}#gone,#error{color:var(--bad)}"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px;margin-bottom:14px}"
    "#bar{height:8px;border-radius:99px;background:var(--line);overflow:hidden}#fill{height:100%;width:0;border-radius:99px;background:var(--a);transition:width .4s}"
    "#foot{display:flex;justify-content:space-between;gap:8px 24px;flex-wrap:wrap;color:var(--dim);margin-top:8px}"
    "#numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:14px;margin-bottom:14px}#numbers .card{margin:0}"
    "#numbers b{display:block;font-size:19px;font-weight:600;white-space:nowrap}#numbers span,.legend,summary,th{color:var(--dim);font-size:12px}"
    "#charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,310px),1fr));gap:0 14px}h2{font-size:14px;margin:0}"
    ".legend{display:flex;gap:4px 16px;flex-wrap:wrap;min-height:20px}.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle}"
    "svg{display:block;width:100%;height:220px;touch-action:pan-y}svg text{font-size:11px;fill:var(--dim)}svg .grid{stroke:var(--line)}"
    "svg path{fill:none;stroke-width:2;stroke-linejoin:round}.s0{stroke:var(--a);background:var(--a)}.s1{stroke:var(--b);background:var(--b)}.live{opacity:.35;stroke-width:1.2px!important}"
    "svg circle.s0{fill:var(--a)}svg circle.s1{fill:var(--b)}.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:4px 14px 4px 0;white-space:nowrap;border-bottom:1px solid var(--line)}tr:last-child td{border:0}.right{text-align:right}.stale td{color:var(--dim)}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 20px;margin:8px 0 0}dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}[hidden]{display:none!important}</style>",

    "<header><h1 id=id>dtrain</h1><span id=state hidden></span><span id=gone></span></header><noscript><p>This page draws its curves by JavaScript; "
    "<a href=status>status</a> and <a href=metrics>metrics</a> are text.</noscript>"
    "<p id=error class=card hidden></p><div id=progress class=card hidden><div id=bar><div id=fill></div></div><div id=foot><span id=done></span><span id=left></span></div></div>"
    "<div id=numbers></div><div id=charts></div><div id=ranked class='card wide' hidden><h2 id=tasks></h2><table><thead id=names></thead><tbody id=ranks></tbody></table></div>"
    "<details class=card id=more hidden><summary>all fields</summary><dl id=rest></dl></details><script>'use strict';"
    "const $=i=>document.getElementById(i),ok=Number.isFinite,"
    "add=(to,name,text,cls)=>{const e=document.createElement(name);if(text!==undefined)e.textContent=text;if(cls)e.className=cls;to.append(e);return e},"
    "svg=(to,name,at,text)=>{const e=document.createElementNS('http://www.w3.org/2000/svg',name);for(const k in at)e.setAttribute(k,at[k]);if(text!==undefined)e.textContent=text;to.append(e);return e},"
    "num=v=>!ok(v)?'–':v&&(Math.abs(v)<1e-3||Math.abs(v)>=1e9)?v.toExponential(2):Math.abs(v)>=1e3?Math.round(v).toLocaleString('en'):String(+v.toPrecision(4)),"
    "pct=v=>ok(v)?+(100*v).toFixed(2)+' %':'–',two=n=>String(n).padStart(2,'0'),"
    "time=s=>{if(!ok(s))return'–';s=Math.round(s);return s<60?s+' s':s<3600?Math.floor(s/60)+' min '+two(s%60)+' s':Math.floor(s/3600)+' h '+two(Math.floor(s%3600/60))+' min'},"
    "nice=(lo,hi,n,least)=>{let u=10**Math.floor(Math.log10((hi-lo)/n||1)),out=[];u*=[1,2,5,10].find(m=>(hi-lo)/(u*m)<=n)||10;u=Math.max(u,least);"
    "for(let t=Math.ceil(lo/u-1e-9)*u;t<=hi+u*1e-9&&out.length<20;t+=u)out.push(Math.abs(t)<u/1e6?0:t);return out};"
    "let status={},rows=[],live=[],tasks=[],size=null,last=null,gone=null;"
    "const charts=[{title:'Loss',keys:['loss','eval_loss'],show:num,log:true},{title:'Accuracy',keys:['accuracy','eval_accuracy'],show:pct},{title:'Samples per second',keys:['samples_per_s'],show:num}],"
    "label={loss:'training',eval_loss:'evaluation',accuracy:'training',eval_accuracy:'evaluation',samples_per_s:'samples/s'},"
    "big=[['loss','loss',num],['eval_loss','eval loss',num],['accuracy','accuracy',pct],['eval_accuracy','eval accuracy',pct],['samples_per_s','samples/s',num],"
    "['learning_rate','learning rate',num],['seconds','running for',time],['checkpoint','checkpoint',v=>v<0?'none':num(v)]],"
    "columns=['task','host','pid','state','step','samples_per_s','cpu_seconds','memory_mb','updated'],heads={samples_per_s:'samples/s',cpu_seconds:'CPU s',memory_mb:'memory MB'};"
    "for(const c of charts){const card=add($('charts'),'div',undefined,'card');c.head=add(card,'h2',c.title);c.legend=add(card,'div',undefined,'legend');c.box=svg(card,'svg',{role:'img','aria-label':c.title});"
    "c.box.onpointermove=e=>{c.at=e.clientX-c.box.getBoundingClientRect().left;draw(c)};c.box.onpointerleave=()=>{c.at=null;draw(c)}}",

    // Of more than 600 points each stretch keeps its least and its greatest, so that no spike is lost, and its mean in front of them.
    "const thin=(p,mean)=>{const out=[],u=Math.ceil(p.length/(mean?150:290));for(let i=0;i<p.length;i+=u){const part=p.slice(i,i+u);let a=part[0],b=a,sum=0;"
    "for(const q of part){if(q[1]<a[1])a=q;if(q[1]>b[1])b=q;sum+=q[1]}if(mean)out.push([part[part.length>>1][0],sum/part.length]);else out.push(...a[0]<b[0]?[a,b]:a===b?[a]:[b,a])}return out};"
    "function draw(c){const g=c.box,W=g.clientWidth||440,H=220,L=54,R=W-10,T=10,B=H-24,pick=(from,k)=>from.filter(r=>ok(r[k])&&ok(r.step)).map(r=>[r.step,r[k]]);"
    "const told=rows.length?rows[rows.length-1].step:-1,series=c.keys.map(k=>pick(rows,k)),now=pick(live.length>rows.length?live:live.filter(r=>r.step>told),c.keys[0]);g.replaceChildren();c.legend.replaceChildren();"
    "let x0=Infinity,x1=-Infinity,y0=Infinity,y1=-Infinity;for(const p of[...series,now])for(const[,y]of p){y0=Math.min(y0,y);y1=Math.max(y1,y)}"
    "for(const r of[...rows,...live])if(ok(r.step)){x0=Math.min(x0,r.step);x1=Math.max(x1,r.step)}"
    "if(y0>y1){svg(g,'text',{x:W/2,y:H/2,'text-anchor':'middle'},'no values yet');return}"
    "const log=c.log&&y0>0&&y1/y0>50,f=log?Math.log10:v=>v;let lo=f(y0),hi=f(y1);const pad=(hi-lo)*.05||Math.abs(hi)*.1||1;lo-=pad;hi+=pad;if(!log&&y0>=0&&lo<0)lo=0;if(x0===x1){x0-=.5;x1+=.5}"
    "const X=v=>L+(R-L)*(v-x0)/(x1-x0),Y=v=>B-(B-T)*(f(v)-lo)/(hi-lo);let ticks=nice(lo,hi,5,0);"
    "if(log){ticks=[];const far=Math.ceil((hi-lo)/6);for(let d=Math.floor(lo);d<=hi;d++)if(d%far===0)for(const m of hi-lo<2.5?[1,2,5]:[1])ticks.push(m*10**d);ticks=ticks.filter(t=>f(t)>=lo&&f(t)<=hi)}"
    "for(const t of ticks){const y=Math.round(Y(t))+.5;svg(g,'line',{x1:L,x2:R,y1:y,y2:y,class:'grid'});svg(g,'text',{x:L-6,y:y+4,'text-anchor':'end'},c.show(t))}"
    "svg(g,'text',{x:L-6,y:H-6,'text-anchor':'end'},'step');for(const t of nice(x0,x1,Math.max(2,W/75),1))svg(g,'text',{x:X(t),y:H-6,'text-anchor':X(t)>R-20?'end':X(t)<L+20?'start':'middle'},t.toLocaleString('en'));"
    "const line=(p,cls)=>svg(g,'path',{class:cls,d:p.map(([x,y],i)=>(i?'L':'M')+X(x).toFixed(1)+' '+Y(y).toFixed(1)).join('')});const fine=(p,k)=>{if(p.length>600){line(thin(p),'s'+k+' live');p=thin(p,true)}line(p,'s'+k)};if(now.length>1)line(now.length>600?thin(now):now,'s0 live');"
    "series.forEach((p,k)=>{fine(p,k);if(p.length<=40)for(const[x,y]of p)svg(g,'circle',{class:'s'+k,cx:X(x),cy:Y(y),r:p.length>1?2.5:4})});"
    "if(c.at!=null){const x=Math.min(R,Math.max(L,c.at));svg(g,'line',{x1:x,x2:x,y1:T,y2:B,class:'grid'})}let step=null;"
    "series.forEach((p,k)=>{const from=p.length?p:k?[]:now;if(!from.length)return;let n=from[from.length-1];"
    "if(c.at!=null){for(const q of from)if(Math.abs(X(q[0])-c.at)<Math.abs(X(n[0])-c.at))n=q;svg(g,'circle',{class:'s'+k,cx:X(n[0]),cy:Y(n[1]),r:4});step=n[0]}"
    "const s=add(c.legend,'span');add(s,'i',undefined,'s'+k);s.append(label[c.keys[k]]+' '+c.show(n[1]))});"
    "c.head.textContent=c.title+(step!==null?' at step '+step.toLocaleString('en'):log?', logarithmic':'')}"
    "const cell=(to,v,right)=>add(to,'td',v===undefined||v===null?'–':typeof v==='number'?num(v):typeof v==='object'?JSON.stringify(v):String(v),right?'right':'');",

    "function showRanks(){$('ranked').hidden=!tasks.length;if(!tasks.length)return;$('tasks').textContent=tasks.length===1?'1 rank':tasks.length+' ranks';"
    "const used=columns.filter(k=>tasks.some(t=>t[k]!==undefined)),newest=Math.max(...tasks.map(t=>Date.parse(t.updated)).filter(ok));"
    "$('names').replaceChildren();$('ranks').replaceChildren();const head=add($('names'),'tr'),right=k=>tasks.some(t=>typeof t[k]==='number');for(const k of used)add(head,'th',heads[k]||k,right(k)?'right':'');"
    "for(const t of tasks.slice(0,500)){const late=(newest-Date.parse(t.updated))/1000,r=add($('ranks'),'tr',undefined,late>10?'stale':'');"
    "for(const k of used)k==='pid'&&ok(t[k])?add(r,'td',t[k],'right'):cell(r,k==='updated'&&late>10&&t.state==='RUNNING'?'silent for '+time(late):t[k],right(k))}"
    "if(tasks.length>500)add(add($('ranks'),'tr'),'td','and '+(tasks.length-500)+' more').colSpan=used.length}"
    "function show(){const s=status,o=ok(s.step)&&s.steps>0?Math.min(1,s.step/s.steps):null;$('id').textContent=s.id||'dtrain';$('state').hidden=!s.state;$('state').textContent=s.state||'';"
    "$('state').className=/^[A-Z]+$/.test(s.state)?s.state:'';document.title=(s.id||'dtrain')+(s.state?': '+s.state:'')+(o!==null&&s.state==='RUNNING'?' '+Math.floor(100*o)+' %':'');"
    "$('gone').textContent=gone?'no answer since '+gone.toLocaleTimeString():'';$('error').hidden=!s.error;$('error').textContent=s.error||'';$('progress').hidden=o===null;"
    "if(o!==null){$('fill').style.width=100*o+'%';$('done').textContent='step '+s.step.toLocaleString('en')+' of '+s.steps.toLocaleString('en')+(s.epochs?', epoch '+s.epoch+' of '+s.epochs:'')+', '+Math.floor(100*o)+' %';"
    // The speed of the last two minutes; on the first look that of the whole run.
    "const from=live.find(p=>s.seconds-p.seconds<=120),d=from?s.seconds-from.seconds:0,rate=d>2&&s.step>from.step?(s.step-from.step)/d:s.step/s.seconds;"
    "$('left').textContent=s.state==='RUNNING'&&!gone&&rate>0&&o<1?'about '+time((s.steps-s.step)/rate)+' left':''}"
    "const words=JSON.stringify(s);if(words!==last){last=words;$('numbers').replaceChildren();for(const[k,name,f]of big)if(ok(s[k])){const b=add($('numbers'),'div',undefined,'card');add(b,'b',f(s[k]));add(b,'span',name)}"
    "$('rest').replaceChildren();for(const[k,v]of Object.entries(s)){add($('rest'),'dt',k);add($('rest'),'dd',typeof v==='object'?JSON.stringify(v):v)}$('more').hidden=words==='{}'}"
    "showRanks();charts.forEach(draw)}"
    "function rowsOf(text){const t=text.split('\\n').slice(0,-1).map(l=>l.split(','));return t.slice(1).map(c=>Object.fromEntries(t[0].map((n,i)=>[n,c[i]?+c[i]:NaN])))}"
    "const get=async(path,how)=>fetch(path,{cache:'no-store',signal:AbortSignal.timeout(9000),...how});"
    "async function tick(){try{const s=await(await get('status?page')).json(),p=live[live.length-1];if(p&&(s.step<p.step||s.seconds<p.seconds))live=[];"
    "if(ok(s.step)&&!(p&&p.step===s.step)){live.push(s);if(live.length>1500)live=live.filter((_,i)=>i%2)}status=s;"
    "const h=await get('metrics.csv',{method:'HEAD'}),n=h.headers.get('content-length');if(h.ok&&n!==size){rows=rowsOf(await(await get('metrics.csv')).text());size=n}"
    "const r=await get('ranks');if(r.ok)tasks=await r.json();gone=null}catch(e){gone=gone||new Date();size=null}"
    "show();setTimeout(tick,document.hidden||gone?4000:1000)}addEventListener('resize',()=>charts.forEach(draw));tick()</script></html>\n"};

// ---- what is known

enum { DT__STATUS_GUESTS = 64, DT__STATUS_REQUEST = 8192, DT__STATUS_TASK_BYTES = 2048, DT__STATUS_BLOCK = 65536 };

static const struct { const char *field, *name, *kind, *help; double unit; } dt__status_rank[] = {  // the metrics of a rank; the last one is its state
    {"step", "step", "gauge", "Steps done by the process.", 1}, {"samples_per_s", "samples_per_second", "gauge", "Training speed of the process.", 1},
    {"cpu_seconds", "cpu_seconds_total", "counter", "CPU time of the process.", 1}, {"memory_mb", "memory_bytes", "gauge", "Memory of the process.", 1e6},
    {NULL, "up", "gauge", "1 while the process runs.", 1}};

typedef struct {           // of tasks/*.json
    char name[64], *text;
    size_t n;
    time_t changed;
    double value[DT__COUNT(dt__status_rank)];  // NAN: none
    int kind, number;      // "worker 3" is of kind 1 and number 3
} dt__status_task;

typedef struct {           // a connection
    int fd, phase;         // fd -1: the place is free
    double since, until;   // since: the last progress that counts; until: then it is closed
    char request[DT__STATUS_REQUEST], head[1200];
    size_t have, n_head;
    uint64_t n_body, sent; // sent: of both together
    const char *body;      // of memory, or NULL: file
    char *owned;           // for free
    int file;
} dt__status_guest;
enum { DT__STATUS_ASKING, DT__STATUS_ANSWERING, DT__STATUS_LEAVING };

struct dt_status {
    char folder[960], host[256], url[320], policy[400];
    int door, wake[2], loopback;
    pthread_t thread;
    pthread_mutex_t lock;  // over json, for as long as copying it takes
    char *json, *page;
    size_t n_page;
    dt__status_task task[DT_STATUS_RANKS];
    int n_tasks;
    double tasks_until, polled, rest_until;  // polled: when a page last asked; rest_until: no connection is taken before
    dt__status_guest guest[DT__STATUS_GUESTS];
    char block[DT__STATUS_BLOCK];
};

// Is there a field of that name in an object? value: at its value.
static int dt__status_field(const char *text, size_t n, const char *name, dt__json *value) {
    dt__json j = {text, text + n, NULL};
    char key[64];
    if (!dt__json_want(&j, '{', "")) return 0;
    while (dt__json_more(&j, '}')) {
        if (!dt__json_key(&j, key, sizeof key, &n)) return 0;
        dt__json_blank(&j);
        *value = j;
        if (n < sizeof key && dt__equals(key, n, name)) return 1;
        if (!dt__json_skip(&j)) return 0;
    }
    return 0;
}

static int dt__status_number(const char *text, size_t n, const char *name, double *v) {
    dt__json j;
    return dt__status_field(text, n, name, &j) && dt__json_number(&j, v) && *v - *v == 0;
}

static int dt__status_is(const char *text, size_t n, const char *state) {
    dt__json j;
    char word[16];
    return dt__status_field(text, n, "state", &j) && dt__json_string(&j, word, sizeof word, &n) && n < sizeof word && dt__equals(word, n, state);
}

// A file that a process may be replacing, or that is no task's: 0 if it is not whole.
static int dt__status_task_read(dt_status *s, const char *file, dt__status_task *t) {
    static const char *const kind[] = {"chief", "worker ", "ps ", "evaluator"};
    char path[1300];
    const char *text;
    struct stat is;
    ssize_t n;
    dt__json j;
    int fd, ok, k;
    dt__format(path, sizeof path, "%s/tasks/%s", s->folder, file);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO must not hold the thread
    if (fd < 0) return 0;
    n = !fstat(fd, &is) && S_ISREG(is.st_mode) ? read(fd, s->block, DT__STATUS_TASK_BYTES + 1) : -1;
    close(fd);
    if (n <= 0 || n > DT__STATUS_TASK_BYTES) return 0;
    j.p = s->block, j.end = s->block + n, j.error = NULL;
    if (dt__json_peek(&j) != '{') return 0;
    text = j.p;
    if (!dt__json_skip(&j) || (n = j.p - text, dt__json_peek(&j)) || j.p != j.end) return 0;
    if (!dt__status_field(text, (size_t)n, "task", &j) || !dt__json_string(&j, t->name, sizeof t->name - 1, &t->n) || !t->n || t->n >= sizeof t->name) return 0;
    t->name[t->n] = 0;
    for (t->kind = 0; t->kind < DT__COUNT(kind) && strncmp(t->name, kind[t->kind], strlen(kind[t->kind])); t->kind++) {}
    t->number = (int)dt__whole(t->name + strcspn(t->name, "0123456789"), INT_MAX, &ok);
    if (!ok) t->number = 0;
    t->changed = is.st_mtime;
    t->text = (char *)malloc(t->n = (size_t)n);
    if (t->text) memcpy(t->text, text, t->n);
    for (k = 0; k < DT__COUNT(dt__status_rank); k++) {
        const char *field = dt__status_rank[k].field;
        if (!field) t->value[k] = dt__status_is(text, t->n, "RUNNING");
        else if (dt__status_number(text, t->n, field, &t->value[k])) t->value[k] *= dt__status_rank[k].unit;
        else t->value[k] = (double)NAN;
    }
    return t->text != NULL;
}

static int dt__status_task_order(const void *a, const void *b) {
    const dt__status_task *x = (const dt__status_task *)a, *y = (const dt__status_task *)b;
    int order = x->kind != y->kind ? x->kind - y->kind : x->number != y->number ? (x->number < y->number ? -1 : 1) : strcmp(x->name, y->name);
    return order ? order : x->changed < y->changed ? 1 : -(x->changed > y->changed);
}

static void dt__status_tasks_forget(dt_status *s) { while (s->n_tasks) free(s->task[--s->n_tasks].text); }

// What was read half a second ago is good enough, and with thousands of files, or slow ones, longer: a tenth of a core at most.
static void dt__status_tasks_read(dt_status *s) {
    char path[1000];
    double began = dt__now();
    struct dirent *e;
    DIR *d;
    int i, n;
    if (!*s->folder || began < s->tasks_until) return;
    dt__status_tasks_forget(s);
    dt__format(path, sizeof path, "%s/tasks", s->folder);
    d = opendir(path);
    while (d && s->n_tasks < DT_STATUS_RANKS && (e = readdir(d)) != NULL) {
        size_t length = strlen(e->d_name);
        if (length > 5 && *e->d_name != '.' && !strcmp(e->d_name + length - 5, ".json")) s->n_tasks += dt__status_task_read(s, e->d_name, &s->task[s->n_tasks]);
    }
    if (d) closedir(d);
    qsort(s->task, (size_t)s->n_tasks, sizeof s->task[0], dt__status_task_order);
    for (i = n = 0; i < s->n_tasks; i++) {  // the newest of a task: Prometheus takes no two metrics that are alike
        if (n && !strcmp(s->task[i].name, s->task[n - 1].name)) free(s->task[i].text);
        else s->task[n++] = s->task[i];
    }
    s->n_tasks = n;
    s->tasks_until = dt__now() + DT__MAX(0.5, 10 * (dt__now() - began));
}

static void dt__status_ranks(dt_status *s, const char *json, dt__writer *w) {
    int i;
    size_t k;
    (void)json;
    for (i = 0; i < s->n_tasks; i++) {
        dt__puts(w, i ? ",\n" : "[");
        for (k = 0; k < s->task[i].n; k++) dt__put(w, s->task[i].text[k]);
    }
    dt__puts(w, i ? "]\n" : "[]\n");
}

static void dt__status_value(dt__writer *w, double v) {
    dt__put_double(w, v, v == floor(v) ? 17 : 9, 0);  // steps in full, the rest as job.h writes it
    dt__put(w, '\n');
}

// Prometheus' text format: a gauge for each number of the status, and of each rank.
static void dt__status_metrics(dt_status *s, const char *json, dt__writer *w) {
    static const struct { const char *field, *name, *help; } own[] = {
        {"step", "step", "Steps done."}, {"steps", "planned_steps", "Steps in all."}, {"epoch", "epoch", "Epoch, from 1."}, {"epochs", "planned_epochs", "Epochs in all."},
        {"loss", "loss", "Training loss of the step or epoch."}, {"accuracy", "accuracy", "Training accuracy, 0 to 1."},
        {"eval_loss", "evaluation_loss", "Loss of the last evaluation."}, {"eval_accuracy", "evaluation_accuracy", "Accuracy of the last evaluation, 0 to 1."},
        {"learning_rate", "learning_rate", "Learning rate."}, {"samples_per_s", "samples_per_second", "Training speed."}, {"seconds", "run_seconds", "Time since this run began."},
        {"checkpoint", "checkpoint_step", "Step of the newest checkpoint."}, {"saves_skipped", "skipped_saves", "Checkpoints left out because one was being written."}};
    size_t n = strlen(json);
    double v;
    int i, k, told;
    for (i = 0; i < DT__COUNT(own); i++) if (dt__status_number(json, n, own[i].field, &v)) {
        dt__print(w, "# HELP dtrain_%s %s\n# TYPE dtrain_%s gauge\ndtrain_%s ", own[i].name, own[i].help, own[i].name, own[i].name);
        dt__status_value(w, v);
    }
    dt__print(w, "# HELP dtrain_up 1 while the job runs.\n# TYPE dtrain_up gauge\ndtrain_up %d\n", dt__status_is(json, n, "RUNNING"));
    for (k = 0; k < DT__COUNT(dt__status_rank); k++) for (i = told = 0; i < s->n_tasks; i++) {
        const char *name = dt__status_rank[k].name, *c;
        v = s->task[i].value[k];
        if (v != v) continue;
        if (!told++) dt__print(w, "# HELP dtrain_rank_%s %s\n# TYPE dtrain_rank_%s %s\n", name, dt__status_rank[k].help, name, dt__status_rank[k].kind);
        dt__print(w, "dtrain_rank_%s{task=\"", name);
        for (c = s->task[i].name; *c; c++) { if (*c == '"' || *c == '\\') dt__put(w, '\\'); dt__put(w, *c > 0 && *c < ' ' ? ' ' : *c); }
        dt__puts(w, "\"} ");
        dt__status_value(w, v);
    }
}

// ---- one request

// The page's policy names its script and its style by what they hold, in base64 of SHA-256: nothing else runs there.
static void dt__status_hash(dt__writer *w, const char *page, const char *tag) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char open_tag[16], close_tag[16];
    const char *from, *to;
    uint8_t h[33] = {0};
    int i;
    dt__format(open_tag, sizeof open_tag, "<%s>", tag);
    dt__format(close_tag, sizeof close_tag, "</%s>", tag);
    from = strstr(page, open_tag) + strlen(open_tag);
    to = strstr(from, close_tag);
    dt__sha256((const uint8_t *)from, (size_t)(to - from), h);
    dt__print(w, "; %s-src 'sha256-", tag);
    for (i = 0; i < 43; i++) dt__put(w, digit[(((unsigned)h[i * 6 / 8] << 8 | h[i * 6 / 8 + 1]) >> (10 - i * 6 % 8)) & 63]);
    dt__puts(w, "='");
}

// The head; the body, if any, is there already.
static void dt__status_reply(dt_status *s, dt__status_guest *g, const char *code, const char *type) {
    dt__writer w = dt__writer_on(g->head, sizeof g->head);
    dt__print(&w, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %ju\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n",
              code, type, (uintmax_t)g->n_body);
    if (!strncmp(code, "405", 3)) dt__puts(&w, "Allow: GET, HEAD\r\n");
    if (g->body == s->page && s->page) dt__print(&w, "Content-Security-Policy: %s\r\n", s->policy);
    dt__puts(&w, "\r\n");
    g->n_head = w.n;
    g->phase = DT__STATUS_ANSWERING;
    if (!strncmp(g->request, "HEAD ", 5)) g->n_body = 0;
}

// A line of text; without memory its head alone.
DT__FORMAT(4) static void dt__status_text(dt_status *s, dt__status_guest *g, const char *code, const char *format, ...) {
    dt__writer w = dt__writer_on(s->block, 1024);
    DT__VPRINT(&w, format);
    g->owned = (char *)malloc(w.n + 1);
    if (g->owned) memcpy(g->owned, s->block, w.n + 1);
    g->body = g->owned;
    g->n_body = g->owned ? w.n : 0;
    dt__status_reply(s, g, code, "text/plain; charset=utf-8");
}

// What a function writes, in memory of its size: the first round counts.
static void dt__status_made(dt_status *s, dt__status_guest *g, const char *json, const char *type, void (*write)(dt_status *, const char *, dt__writer *)) {
    dt__writer w = dt__writer_on(NULL, 0);
    dt__status_tasks_read(s);
    write(s, json, &w);
    if (!(g->owned = (char *)malloc(w.n + 1))) { dt__status_text(s, g, "503 Service Unavailable", "out of memory\n"); return; }
    w = dt__writer_on(g->owned, w.n + 1);
    write(s, json, &w);
    g->body = g->owned;
    g->n_body = w.n;
    dt__status_reply(s, g, "200 OK", type);
}

// As long as it is now: a row that is added meanwhile is for the next one.
static void dt__status_file(dt_status *s, dt__status_guest *g, const char *name, const char *type) {
    char path[1000];
    struct stat is;
    dt__format(path, sizeof path, "%s/%s", s->folder, name);
    if (!*s->folder) { dt__status_text(s, g, "404 Not Found", "%s: this process has no folder; ask the chief\n", name); return; }
    g->file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (g->file < 0 && errno != ENOENT) { dt__status_text(s, g, "500 Internal Server Error", "%s: %s\n", name, strerror(errno)); return; }
    if (g->file >= 0 && (fstat(g->file, &is) || !S_ISREG(is.st_mode))) {
        close(g->file);
        g->file = -1;
        dt__status_text(s, g, "500 Internal Server Error", "%s is no file\n", name);
        return;
    }
    g->n_body = g->file >= 0 ? (uint64_t)is.st_size : 0;  // none yet: it has no rows
    dt__status_reply(s, g, "200 OK", type);
}

// Is it asked for by a name that only this machine can have? An address is nobody else's name; of names, localhost and the own.
static int dt__status_host(const dt_status *s, const char *host, size_t n) {
    const char *colon;
    if (!s->loopback || (n && *host == '[')) return 1;
    colon = (const char *)memchr(host, ':', n);
    if (colon) n = (size_t)(colon - host);
    return strspn(host, "0123456789.") >= n || (n == 9 && !strncasecmp(host, "localhost", 9)) || (n == strlen(s->host) && !strncasecmp(host, s->host, n));
}

// The request, if it is whole, or can be none.
static void dt__status_look(dt_status *s, dt__status_guest *g) {
    char *target, *query, *line, *json, version;
    int hosts = 0, strange = 0;
    size_t n;
    g->request[g->have] = 0;
    if (*g->request < 'A' || *g->request > 'Z') { dt__status_text(s, g, "400 Bad Request", "this is no HTTP; for https use a proxy\n"); return; }
    if (!strstr(g->request, "\r\n\r\n") && !strstr(g->request, "\n\n")) {
        if (strlen(g->request) != g->have) dt__status_text(s, g, "400 Bad Request", "the request holds a zero byte\n");
        else if (g->have == DT__STATUS_REQUEST - 1) dt__status_text(s, g, "431 Request Header Fields Too Large", "the request has more than 8 KB\n");
        return;
    }
    target = g->request + strcspn(g->request, " \r\n");
    n = strcspn(++target, " \r\n");
    if (target[-1] != ' ' || *target != '/' || strncmp(target + n, " HTTP/1.", 8) || !((version = target[n + 8]) == '0' || version == '1') || !strchr("\r\n", target[n + 9])) {
        dt__status_text(s, g, "400 Bad Request", "the request is not METHOD /path HTTP/1.1\n");
        return;
    }
    for (line = strchr(target, '\n') + 1; *line && *line != '\r' && *line != '\n'; line = strchr(line, '\n') + 1) {
        if (strncasecmp(line, "host:", 5)) continue;
        line += 5 + strspn(line + 5, " \t");
        hosts++;
        strange += !dt__status_host(s, line, strcspn(line, " \t\r\n"));
    }
    target[n] = 0;
    if ((query = strchr(target, '?')) != NULL) *query = 0;
    if (hosts > 1 || (!hosts && version == '1')) dt__status_text(s, g, "400 Bad Request", "the request has %d Host lines, one is needed\n", hosts);
    else if (strange) dt__status_text(s, g, "403 Forbidden", "bound to this machine, this answers to localhost only: open %s, or bind to --status-port HOST:PORT\n", s->url);
    else if (strncmp(g->request, "GET ", 4) && strncmp(g->request, "HEAD ", 5)) dt__status_text(s, g, "405 Method Not Allowed", "GET and HEAD only: nothing can be changed here\n");
    else if (!strcmp(target, "/")) { g->body = s->page; g->n_body = s->n_page; dt__status_reply(s, g, "200 OK", "text/html; charset=utf-8"); }
    else if (!strcmp(target, "/healthz")) dt__status_text(s, g, "200 OK", "ok\n");
    else if (!strcmp(target, "/metrics.csv")) dt__status_file(s, g, "metrics.csv", "text/csv; charset=utf-8");
    else if (!strcmp(target, "/ranks")) dt__status_made(s, g, "", "application/json", dt__status_ranks);
    else if (!strcmp(target, "/status") || !strcmp(target, "/metrics")) {
        pthread_mutex_lock(&s->lock);
        json = (char *)malloc(n = strlen(s->json) + 1);
        if (json) memcpy(json, s->json, n);
        pthread_mutex_unlock(&s->lock);
        if (!json) dt__status_text(s, g, "503 Service Unavailable", "out of memory\n");
        else if (target[7]) { dt__status_made(s, g, json, "text/plain; version=0.0.4; charset=utf-8", dt__status_metrics); free(json); }
        else { g->body = g->owned = json; g->n_body = n - 1; dt__status_reply(s, g, "200 OK", "application/json"); }
        if (query && !strcmp(query + 1, "page")) s->polled = dt__now();
    } else dt__status_text(s, g, "404 Not Found", "here are /, /status, /metrics, /ranks, /metrics.csv and /healthz\n");
}

// ---- connections

static void dt__status_guest_close(dt__status_guest *g) {
    const struct linger now = {1, 0};  // what it did not take leaves the system's memory, too
    if (g->phase == DT__STATUS_ANSWERING && g->sent < g->n_head + g->n_body) setsockopt(g->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    if (g->file >= 0) close(g->file);
    close(g->fd);
    free(g->owned);
    g->owned = NULL;
    g->fd = g->file = -1;
}

// 1: all is gone; 0: later; -1: it is not wanted any more. A megabyte at a time, so that others come in between.
static int dt__status_guest_send(dt_status *s, dt__status_guest *g, double now) {
    int round;
    for (round = 0; round < 16 && g->sent < g->n_head + g->n_body; round++) {
        const char *from;
        uint64_t at = g->sent, n = g->n_head - g->sent;
        ssize_t gone;
        if (g->sent < g->n_head) from = g->head + at;
        else {
            at -= g->n_head;
            n = DT__MIN(g->n_body - at, g->file < 0 ? g->n_body : (uint64_t)DT__STATUS_BLOCK);
            from = g->file < 0 ? g->body + at : s->block;
            if (g->file >= 0) {
                gone = pread(g->file, s->block, (size_t)n, (off_t)at);
                if (gone <= 0) return -1;  // it has become shorter: the client sees that, too
                n = (uint64_t)gone;
            }
        }
        gone = send(g->fd, from, (size_t)n, MSG_NOSIGNAL);
        if (gone < 0) return dt__later() ? 0 : -1;
        g->sent += (uint64_t)gone;
        g->since = now;
        g->until = now + 2 * DT_STATUS_PATIENCE;
    }
    return g->sent == g->n_head + g->n_body;
}

static void dt__status_guest_serve(dt_status *s, dt__status_guest *g) {
    double now = dt__now();
    ssize_t got = 1;
    int gone;
    if (g->phase == DT__STATUS_ASKING) {
        got = recv(g->fd, g->request + g->have, DT__STATUS_REQUEST - 1 - g->have, 0);
        if (got > 0) { g->have += (size_t)got; dt__status_look(s, g); }
    }
    if (g->phase == DT__STATUS_LEAVING) while ((got = recv(g->fd, s->block, sizeof s->block, 0)) > 0) {}
    if (got == 0 || (got < 0 && !dt__later())) { dt__status_guest_close(g); return; }
    if (g->phase != DT__STATUS_ANSWERING || !(gone = dt__status_guest_send(s, g, now))) return;
    if (gone < 0) { dt__status_guest_close(g); return; }
    // Not closed at once: what it sent and we have not read would make the system drop the answer.
    shutdown(g->fd, SHUT_WR);
    g->phase = DT__STATUS_LEAVING;
    g->until = now + 1;
}

// A free place; or else that of who has made no progress for longest, if that is a quarter of a second. NULL: none yet.
static dt__status_guest *dt__status_place(dt_status *s, double now) {
    dt__status_guest *g, *slow = s->guest;
    for (g = s->guest; g < s->guest + DT__STATUS_GUESTS; g++) {
        if (g->fd < 0) return g;
        if (g->since < slow->since) slow = g;
    }
    return slow->since < now - 0.25 ? slow : NULL;
}

static void dt__status_accept(dt_status *s) {
    double now = dt__now();
    dt__status_guest *g;
    int n;
    for (n = 0; n < DT__STATUS_GUESTS && (g = dt__status_place(s, now)) != NULL; n++) {
        int fd = accept(s->door, NULL, NULL);
        if (fd < 0) {
            if (!dt__later() && errno != ECONNABORTED) s->rest_until = now + 0.2;  // no more files, say: the door stays ready, and poll would not wait
            return;
        }
        if (g->fd >= 0) dt__status_guest_close(g);
        dt__socket_ready(fd);
        g->fd = fd;
        g->phase = DT__STATUS_ASKING;
        g->have = g->n_head = 0;
        g->sent = g->n_body = 0;
        g->body = NULL;
        g->since = now;
        g->until = now + DT_STATUS_PATIENCE;
        dt__status_guest_serve(s, g);  // its request may be here
    }
}

static void *dt__status_main(void *user) {
    dt_status *s = (dt_status *)user;
    double end = 0;  // 0: it is not being closed
    for (;;) {
        struct pollfd p[2 + DT__STATUS_GUESTS];
        dt__status_guest *with[2 + DT__STATUS_GUESTS];
        double now = dt__now();
        nfds_t n = 2, i;
        dt__status_guest *g;
        for (g = s->guest; g < s->guest + DT__STATUS_GUESTS; g++) {
            if (g->fd >= 0 && now > g->until) {
                if (g->phase == DT__STATUS_ASKING && g->have) { dt__status_text(s, g, "408 Request Timeout", "the request does not end\n"); dt__status_guest_send(s, g, now); }
                dt__status_guest_close(g);
            }
            if (g->fd < 0) continue;
            p[n].fd = g->fd;
            p[n].events = g->phase == DT__STATUS_ANSWERING ? POLLOUT : POLLIN;
            with[n++] = g;
        }
        // A page that is open sees how it ended: it asks for the status, and then for the rest.
        if (end > 0 && (now > end || (s->polled > end - 1.5 && now > s->polled + 0.3 && n == 2))) return NULL;
        p[0].fd = end > 0 ? -1 : s->wake[0];
        p[1].fd = now < s->rest_until || !dt__status_place(s, now) ? -1 : s->door;
        p[0].events = p[1].events = POLLIN;
        if (poll(p, n, n > 2 || p[1].fd < 0 || end > 0 ? 100 : -1) <= 0) continue;
        if (p[0].fd >= 0 && p[0].revents) {
            now = dt__now();
            if (now > s->polled + 3) return NULL;
            end = now + 1.5;
        }
        for (i = 2; i < n; i++) if (p[i].revents) dt__status_guest_serve(s, with[i]);
        if (p[1].fd >= 0 && p[1].revents) dt__status_accept(s);
    }
}

// ---- open, put, close

// The listener, with .host, .url and .loopback; or -1.
static int dt__status_listen(dt_status *s, const char *where, int offset, dt_error *err) {
    const char *why = "that host is not known";
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    struct addrinfo *a, *at;
    char number[16];
    int port = 0, ok = 1, one = 1, fd = -1;
    dt__format(s->host, sizeof s->host, "127.0.0.1");
    if (!dt__address(where, s->host, sizeof s->host, &port)) port = (int)dt__whole(where, 65535, &ok);
    if (!ok) { dt__deny(err, "--status-port is \"%.80s\": a port is needed, as 8080, or HOST:PORT, as 0.0.0.0:8080", where); return -1; }
    if (port && (port + offset < 1 || port + offset > 65535)) {
        dt__deny(err, "--status-port is \"%.80s\": this process takes the port %d behind it, and %d is none: begin lower", where, offset, port + offset);
        return -1;
    }
    if (port) port += offset;
    a = dt__resolve(s->host, AF_UNSPEC, port);
    for (at = a; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM, 0);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd >= 0 && !bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, 128)) continue;
        why = strerror(errno);
        if (fd >= 0) close(fd);
        fd = -1;
    }
    if (a) freeaddrinfo(a);
    if (fd >= 0 && !getsockname(fd, (struct sockaddr *)&own, &n) && !getnameinfo((struct sockaddr *)&own, n, NULL, 0, number, sizeof number, NI_NUMERICSERV)) {
        dt__socket_ready(fd);
        s->loopback = dt__is_loopback(&own, n)
            || (own.ss_family == AF_INET && ntohl(((struct sockaddr_in *)(void *)&own)->sin_addr.s_addr) >> 24 == 127);
        dt__format(s->url, sizeof s->url, strchr(s->host, ':') ? "http://[%s]:%s" : "http://%s:%s", s->host, number);
        return fd;
    }
    dt__fail(err, DT_ERR_IO, "--status-port %.60s: cannot listen at %.60s port %d: %s: choose another", where, s->host, port, why);
    return -1;
}

static int dt__status_join_page(dt_status *s) {
    dt__writer w = dt__writer_on(s->policy, sizeof s->policy);
    int i;
    for (i = 0; i < DT__COUNT(dt__status_page); i++) s->n_page += strlen(dt__status_page[i]);
    if (!(s->page = (char *)malloc(s->n_page + 1))) return 0;
    *s->page = 0;
    for (i = 0; i < DT__COUNT(dt__status_page); i++) strcat(s->page, dt__status_page[i]);
    dt__puts(&w, "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'");
    dt__status_hash(&w, s->page, "script");
    dt__status_hash(&w, s->page, "style");
    return 1;
}

static void dt__status_free(dt_status *s) {
    int i;
    for (i = 0; i < DT__STATUS_GUESTS; i++) if (s->guest[i].fd >= 0) dt__status_guest_close(&s->guest[i]);
    for (i = 0; i < 2; i++) if (s->wake[i] >= 0) close(s->wake[i]);
    if (s->door >= 0) close(s->door);
    dt__status_tasks_forget(s);
    free(s->json);
    free(s->page);
    free(s);
}

DT_API dt_status *dt_status_open(const char *where, int offset, const char *folder, dt_error *err) {
    dt_status *s = NULL;
    sigset_t all, before;
    int i, started;
    if (!where || !*where) { dt__deny(err, "--status-port is empty: a port is needed, as 8080, or HOST:PORT"); return NULL; }
    if (folder && strlen(folder) >= sizeof s->folder) { dt__deny(err, "--status-port: the folder \"%.60s...\" has %zu bytes: at most %zu are taken", folder, strlen(folder), sizeof s->folder - 1); return NULL; }
    s = (dt_status *)calloc(1, sizeof *s);
    if (!s) { dt__fail(err, DT_ERR_MEMORY, "--status-port: out of memory: %zu bytes are needed", sizeof *s); return NULL; }
    s->door = s->wake[0] = s->wake[1] = -1;
    s->polled = -DBL_MAX;
    for (i = 0; i < DT__STATUS_GUESTS; i++) s->guest[i].fd = s->guest[i].file = -1;
    if (folder) strcpy(s->folder, folder);
    s->json = (char *)calloc(1, 4);
    if (!s->json || !dt__status_join_page(s)) dt__fail(err, DT_ERR_MEMORY, "--status-port: out of memory");
    else if ((s->door = dt__status_listen(s, where, offset, err)) >= 0) {
        strcpy(s->json, "{}\n");
        if (!pipe(s->wake) && !pthread_mutex_init(&s->lock, NULL)) {
            for (i = 0; i < 2; i++) fcntl(s->wake[i], F_SETFD, FD_CLOEXEC);
            sigfillset(&all);  // signals are the program's own
            pthread_sigmask(SIG_SETMASK, &all, &before);
            started = !pthread_create(&s->thread, NULL, dt__status_main, s);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            if (started) return s;
            pthread_mutex_destroy(&s->lock);
        }
        dt__fail(err, DT_ERR_IO, "--status-port %.60s: the system has no pipe or thread for it: go on without", where);
    }
    dt__status_free(s);
    return NULL;
}

DT_API const char *dt_status_url(const dt_status *s) { return s ? s->url : ""; }

DT_API void dt_status_put(dt_status *s, const char *json) {
    size_t n = json ? strlen(json) + 1 : 0;
    char *copy = s && n ? (char *)malloc(n) : NULL, *old;
    if (!copy) return;  // without memory the last one stays
    memcpy(copy, json, n);
    pthread_mutex_lock(&s->lock);
    old = s->json;
    s->json = copy;
    pthread_mutex_unlock(&s->lock);
    free(old);
}

DT_API void dt_status_close(dt_status *s) {
    if (!s) return;
    while (write(s->wake[1], "", 1) < 0 && errno == EINTR) {}
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    dt__status_free(s);
}
#endif
#endif  // DTRAIN_STATUS_H
